import { expect, test } from "vitest";
import { job, node } from "../test/make";
import { reviveJob, reviveMetrics, reviveNode, reviveNumber } from "./revive";
import type { RawJob } from "./types";

test("JSON's missing numbers come back", () => {
  expect(["NaN", "Infinity", "-Infinity", 0.5].map(reviveNumber)).toEqual([NaN, Infinity, -Infinity, 0.5]);
  expect([null, "x", undefined].map(reviveNumber)).toEqual([undefined, undefined, undefined]);
});

test("metrics keep what is a number and drop what is not", () => {
  expect(reviveMetrics({ "eval/loss": "NaN", "eval/accuracy": 0.1, odd: null })).toStrictEqual({
    "eval/loss": NaN,
    "eval/accuracy": 0.1,
  });
  expect(reviveMetrics(undefined)).toEqual({});
});

test("a node that is called NaN keeps its name", () => {
  expect(reviveNode(node("NaN"), 0).name).toBe("NaN");
});

test("durations become moments of this clock", () => {
  const { eta_at: _, ...plain } = job();
  expect(reviveJob({ ...plain, eta_s: 12 } as RawJob, 1000).eta_at).toBe(13_000);
  expect(reviveJob({ ...plain, eta_s: null } as RawJob, 1000).eta_at).toBeNull();
  expect(reviveNode(node("ada", { last_seen_s: 2.5 }), 10_000).seen_at).toBe(7_500);
  expect(reviveNode(node("ada", { last_seen_s: null }), 10_000).seen_at).toBeNull();
});
