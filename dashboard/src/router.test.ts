import { expect, test } from "vitest";
import { comparePath, jobPath, route } from "./router";

test("addresses lead to their pages", () => {
  expect(route("/")).toEqual({ page: "jobs" });
  expect(route("/jobs/")).toEqual({ page: "jobs" });
  expect(route("/jobs/digits-demo")).toEqual({ page: "job", job: "digits-demo" });
  expect(route("/jobs/digits/more")).toEqual({ page: "unknown" });
  expect(route("/compare")).toEqual({ page: "compare" });
  expect(route("/compare/more")).toEqual({ page: "unknown" });
  expect(comparePath(["a", "b c"])).toBe("/compare?runs=a,b%20c");
  expect(route("/elsewhere")).toEqual({ page: "unknown" });
  expect(route("/jobs/%E0%A4%A")).toEqual({ page: "unknown" });
});

test("any name survives the way into an address and back", () => {
  const name = "a/b ?#%";
  expect(route(jobPath(name))).toEqual({ page: "job", job: name });
});
