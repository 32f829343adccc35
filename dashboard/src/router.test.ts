import { expect, test } from "vitest";
import { comparePath, jobPath, route } from "./router";

const PATTERNS = ["/", "/jobs", "/jobs/:name", "/compare"] as const;

test("addresses lead to their pages", () => {
  expect(route("/", PATTERNS)?.pattern).toBe("/");
  expect(route("/jobs/", PATTERNS)?.pattern).toBe("/jobs");
  expect(route("/jobs/digits-demo", PATTERNS)).toEqual({ pattern: "/jobs/:name", names: ["digits-demo"] });
  expect(route("/jobs/digits/more", PATTERNS)).toBeNull();
  expect(route("/compare", PATTERNS)?.pattern).toBe("/compare");
  expect(route("/compare/more", PATTERNS)).toBeNull();
  expect(comparePath(["a", "b c"])).toBe("/compare?runs=a,b%20c");
  expect(route("/elsewhere", PATTERNS)).toBeNull();
  expect(route("/jobs/%E0%A4%A", PATTERNS)).toBeNull();
});

test("any name survives the way into an address and back", () => {
  const name = "a/b ?#%";
  expect(route(jobPath(name), PATTERNS)).toEqual({ pattern: "/jobs/:name", names: [name] });
});
