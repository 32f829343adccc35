import { expect, test } from "vitest";
import { comparePath, jobPath, matchRoute } from "./router";

const PATTERNS = ["/", "/jobs", "/jobs/:name", "/compare"] as const;

test("addresses lead to their pages", () => {
  expect(matchRoute("/", PATTERNS)?.pattern).toBe("/");
  expect(matchRoute("/jobs/", PATTERNS)?.pattern).toBe("/jobs");
  expect(matchRoute("/jobs/digits-demo", PATTERNS)).toEqual({ pattern: "/jobs/:name", names: ["digits-demo"] });
  expect(matchRoute("/jobs/digits/more", PATTERNS)).toBeNull();
  expect(matchRoute("/compare", PATTERNS)?.pattern).toBe("/compare");
  expect(matchRoute("/compare/more", PATTERNS)).toBeNull();
  expect(comparePath(["a", "b c"])).toBe("/compare?runs=a,b%20c");
  expect(matchRoute("/elsewhere", PATTERNS)).toBeNull();
  expect(matchRoute("/jobs/%E0%A4%A", PATTERNS)).toBeNull();
});

test("any name survives the way into an address and back", () => {
  const name = "a/b ?#%";
  expect(matchRoute(jobPath(name), PATTERNS)).toEqual({ pattern: "/jobs/:name", names: [name] });
});
