import { expect, test } from "vitest";
import type { Metrics } from "../api/types";
import { node, version } from "../test/factories";
import { referenceDistances, conceptDrifts, latestRate, rates, bytesSaved, syncSteps, threshold, type SyncStep } from "./divergence";

const closed = (number: number, at: number, full: number, violations: number, more: Metrics = {}) =>
  version(number, {}, {
    elapsed_s: at,
    numbers: { delta: 0.5, "total.full_syncs": full, "total.violations": violations, ...more },
  });

test("steps tell full from partial synchronizations", () => {
  const versions = [closed(0, 0, 0, 0), closed(1, 2, 1, 1), closed(2, 3, 1, 3)];
  expect(syncSteps(versions)).toEqual([
    { at: 2, full: 1, partial: 0, violations: 1 },
    { at: 3, full: 0, partial: 1, violations: 2 },
  ]);
});

test("nothing is lost where a long run is thinned out", () => {
  expect(syncSteps([closed(0, 0, 0, 0), closed(10, 60, 4, 17)])).toEqual([{ at: 60, full: 4, partial: 6, violations: 17 }]);
});

test("versions of a release that did not count are partial ones at worst", () => {
  const [first, second] = [version(0), version(1)];
  expect(syncSteps([first, second])).toEqual([{ at: 2, full: 0, partial: 1, violations: 0 }]);
});

const step = (at: number, rest: Partial<SyncStep> = {}): SyncStep => ({ at, full: 0, partial: 0, violations: 0, ...rest });

test("rates are per minute, in spans that people count in", () => {
  const found = rates([step(1, { full: 1, violations: 1 }), step(11, { full: 1, partial: 2, violations: 3 })], 20);
  expect(found.width).toBe(0.5);
  expect(found.x).toHaveLength(40);
  expect(found.x[0]).toBe(0.25);
  expect([found.full[2], found.partial[2], found.violations[2]]).toEqual([120, 0, 120]);
  expect([found.full[22], found.partial[22], found.violations[22]]).toEqual([120, 240, 360]);
});

test("the last span counts what has passed of it, and at least half", () => {
  expect(rates([step(399, { full: 1 })], 399).full.at(-1)).toBeCloseTo(60 / 9);
  expect(rates([step(391, { full: 1 })], 391).full.at(-1)).toBeCloseTo(60 / 5);
});

test("a job that has not begun has one empty span", () => {
  expect(rates([], 0).full).toEqual([0]);
});

test("the latest rate looks back a minute, or as far as there is", () => {
  const all = [step(10, { full: 9 }), step(100, { full: 2 }), step(110, { full: 1 })];
  expect(latestRate(all, 120, ({ full }) => full)).toBe(3);
  expect(latestRate([step(5, { full: 2 })], 20, ({ full }) => full)).toBe(6);
  expect(latestRate([], 0, ({ full }) => full)).toBe(0);
});

test("concept drift stands where the rate began to rise", () => {
  const versions = [closed(0, 0, 0, 0), closed(15, 10, 15, 15), closed(23, 13, 23, 23, { "concept_drift.factor": 2.8, "concept_drift.since": 15 })];
  expect(conceptDrifts(versions)).toEqual([{ rise: 2.8, byLoss: false, since: 15, from: 10, found: 13 }]);
  expect(conceptDrifts([versions[0]!, versions[2]!])[0]?.from).toBe(0);
  expect(conceptDrifts(versions.slice(0, 2))).toEqual([]);
});

test("gaps are shares of the newest threshold, the furthest first", () => {
  const nodes = [
    node("ada", { metrics: { "train/divergence": 0.2 } }),
    node("bob"),
    node("cy", { metrics: { "train/divergence": 0.6 } }),
  ];
  const delta = threshold([closed(0, 0, 0, 0), closed(1, 1, 1, 1, { delta: 0.4, theta: 7 })], "delta");
  expect(referenceDistances(nodes, delta).map(({ node, share }) => [node, share.toFixed(2)])).toEqual([
    ["cy", "1.50"],
    ["ada", "0.50"],
  ]);
  expect(referenceDistances(nodes, threshold([version(0)], "delta"))).toEqual([]);
  expect(threshold([closed(0, 0, 0, 0, { theta: 7 })], "theta")).toBe(7);
});

test("what was saved is computed from the checks that nodes made", () => {
  const nodes = [node("ada", { metrics: { "train/checks": 30 } }), node("bob", { metrics: { "train/checks": 20 } })];
  expect(bytesSaved(nodes, 1000, 25_000)).toEqual({ checks: 50, often: 100_000, saved: 0.75 });
  expect(bytesSaved([node("ada")], 1000, 25_000).saved).toBeUndefined();
});
