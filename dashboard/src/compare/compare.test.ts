import { expect, test } from "vitest";
import { job, version } from "../test/make";
import { overlay } from "./overlay";
import { commonMetric, compareRuns, type Run } from "./runs";

const run = (name: string, accuracies: number[], bytes: number): Run => ({
  job: job({ name, up_bytes: bytes * accuracies.length, down_bytes: 0 }),
  versions: accuracies.map((value, number) =>
    version(number, { "eval/accuracy": value, "eval/loss": 1 - value }, { total_bytes: number * bytes }),
  ),
});

const costly = run("costly", [0.1, 0.8, 0.97, 0.96], 300);
const sparing = run("sparing", [0.1, 0.5, 0.7, 0.9, 0.95, 0.94], 30);

test("each run has its price", () => {
  const { target, baseline, rows } = compareRuns([costly, sparing], "accuracy", "eval/accuracy");
  expect(target).toBeCloseTo(0.98 * 0.95);
  expect(baseline).toBe("costly");
  expect(rows.map((row) => [row.final, row.best, row.syncs])).toEqual([
    [0.96, 0.97, 3],
    [0.94, 0.95, 5],
  ]);
  expect(rows.map((row) => row.reached?.total_bytes)).toEqual([600, 120]);
  expect(rows.map((row) => row.ratio)).toEqual([1, 180 / 1200]);
});

test("a target may be out of reach", () => {
  const { rows } = compareRuns([costly, sparing], "accuracy", "eval/accuracy", 0.96);
  expect(rows.map((row) => row.reached?.number)).toEqual([2, undefined]);
});

test("a loss is better when it is smaller", () => {
  const { target, rows } = compareRuns([costly, sparing], "loss", "eval/loss");
  expect(target).toBeCloseTo(0.05 / 0.98);
  expect(rows.map((row) => row.best)).toEqual([expect.closeTo(0.03), expect.closeTo(0.05)]);
  expect(rows.map((row) => row.reached?.number)).toEqual([2, 4]);
});

test("what is no number is neither best nor good enough", () => {
  const { rows } = compareRuns([run("a", [0.3, Infinity, NaN], 1)], "accuracy", "eval/accuracy", 0.5);
  expect(rows[0]).toMatchObject({ best: 0.3, final: NaN, reached: undefined });
});

test("the metric is one that all have, held-out data first", () => {
  const both: Run = { job: job(), versions: [version(0, { "eval/accuracy": 0, "held_out/accuracy": 0 })] };
  expect(commonMetric("accuracy", [both, both])).toBe("held_out/accuracy");
  expect(commonMetric("accuracy", [both, costly])).toBe("eval/accuracy");
  expect(commonMetric("loss", [both, costly])).toBeUndefined();
  expect(commonMetric("loss", [])).toBeUndefined();
});

test("runs lie over each other at their own places", () => {
  const { x, y, at, diverged } = overlay(
    [costly.versions.slice(0, 3), run("b", [0.2, NaN], 400).versions],
    "eval/accuracy",
    "bytes",
  );
  expect(x).toEqual([0, 300, 400, 600]);
  expect(y).toEqual([
    [0.1, 0.8, undefined, 0.97],
    [0.2, undefined, null, undefined],
  ]);
  expect(at[1]?.map((one) => one?.number)).toEqual([0, 0, 1, 1]);
  expect(diverged).toEqual([2]);
});
