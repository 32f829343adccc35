import { expect, test } from "vitest";
import type { Failure } from "../api/types";
import { FAILURES_MAX, mergeFailures, mergeNodeFailures } from "../live/merge";
import { event } from "../test/factories";
import { filterFailures, countBy } from "./failures";

const failure = (id: number, more: Partial<Failure> = {}): Failure => ({
  id,
  at: "2026-01-02T03:04:05.000Z",
  job: "digits",
  node: "ada",
  task: `1.${id}`,
  version: 3,
  kind: "train",
  phase: "train",
  error: "no data",
  traceback: "",
  outcome: "replaced",
  outcome_why: "",
  ...more,
});

const merge = mergeFailures("digits");
const failed = (one: Failure) => event("failure", one, one.job);
const ids = (failures: Failure[]) => failures.map(({ id }) => id);

test("failures stand newest first, each once, wherever they come from", () => {
  const known = [failure(5), failure(2)];
  expect(ids(merge(known, failed(failure(7))))).toEqual([7, 5, 2]);
  expect(ids(merge(known, failed(failure(3))))).toEqual([5, 3, 2]);
  expect(ids(merge(known, failed(failure(1))))).toEqual([5, 2, 1]);
  const again = merge(known, failed(failure(2, { outcome: "set-aside" })));
  expect(ids(again)).toEqual([5, 2]);
  expect(again[1]?.outcome).toBe("set-aside");
  expect(merge(known, failed(failure(9, { job: "other" })))).toBe(known);
  expect(merge(known, event("traffic", { up_bytes: 1, down_bytes: 1 }))).toBe(known);
});

test("a node's are those of all its jobs", () => {
  const mine = mergeNodeFailures("ada");
  const known = mine([failure(2)], failed(failure(4, { job: "other" })));
  expect(ids(known)).toEqual([4, 2]);
  expect(mine(known, failed(failure(9, { node: "bob" })))).toBe(known);
  expect(ids(filterFailures(known, { job: "other", phase: "" }))).toEqual([4]);
});

test("a tab keeps the newest", () => {
  const full = Array.from({ length: FAILURES_MAX }, (_, index) => failure(2 * FAILURES_MAX - index));
  expect(merge(full, failed(failure(3 * FAILURES_MAX)))).toHaveLength(FAILURES_MAX);
  expect(merge(full, failed(failure(1)))).toBe(full);
});

test("nodes and phases are chosen from, the most frequent first", () => {
  const all = [failure(4, { node: "bob" }), failure(3), failure(2, { phase: "upload" }), failure(1, { node: "constructor" })];
  expect(countBy(all, "node")).toEqual([
    ["ada", 2],
    ["bob", 1],
    ["constructor", 1],
  ]);
  expect(ids(filterFailures(all, { node: "ada", phase: "" }))).toEqual([3, 2]);
  expect(ids(filterFailures(all, { node: "ada", phase: "upload" }))).toEqual([2]);
  expect(filterFailures(all, { node: "", phase: "" })).toHaveLength(4);
});
