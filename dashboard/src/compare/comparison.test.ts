import { expect, test } from "vitest";
import type { RawComparison } from "../api/types";
import { job } from "../test/factories";
import { configDifferences } from "./configDifferences";
import { alignRuns } from "./alignRuns";
import { decodeComparison, sortRows, type Row, type Run, type RunPoint } from "./comparison";

const stops = (accuracies: number[], bytes: number): RunPoint[] =>
  accuracies.map((value, number) => ({
    number,
    elapsed_s: 2 * number,
    total_bytes: number * bytes,
    metrics: { "eval/accuracy": value },
  }));

const told = (rest: Partial<RawComparison["runs"][number]> = {}): RawComparison["runs"][number] => {
  const { eta_at: _, ...raw } = job({ name: "a", up_bytes: 100, down_bytes: 200 });
  return {
    job: { ...raw, eta_s: null },
    line: { numbers: [0, 3], elapsed_s: [0, 6], total_bytes: [0, 30], values: { "eval/accuracy": [null, "NaN"] } },
    last: "NaN",
    best: null,
    syncs: 3,
    reached: null,
    ...rest,
  };
};

test("what the coordinator tells is read", () => {
  const dear = told({ best: 0.9, last: 0.8, reached: { version: 2, elapsed_s: 4, total_bytes: 20 } });
  dear.job = { ...dear.job, name: "b", up_bytes: 600, down_bytes: 0 };
  const metrics = { accuracy: "eval/accuracy", loss: null };
  const found = decodeComparison({ metrics, judged: "eval/accuracy", target: 0.5, baseline: "b", runs: [told(), dear] }, 0);
  expect(found).toMatchObject({ metrics: { accuracy: "eval/accuracy" }, rankedBy: "accuracy", target: 0.5, baseline: "b" });
  expect(found.rows.map((row) => [row.last, row.best, row.bytes, row.ratio, row.reached?.version])).toEqual([
    [NaN, undefined, 300, 0.5, undefined],
    [0.8, 0.9, 600, 1, 2],
  ]);
  expect(found.rows[0]?.run.points).toEqual([
    { number: 0, elapsed_s: 0, total_bytes: 0, metrics: {} },
    { number: 3, elapsed_s: 6, total_bytes: 30, metrics: { "eval/accuracy": NaN } },
  ]);
});

test("rows are put in order, and keep their color", () => {
  const row = (name: string, place: number, best: number | undefined, bytes: number): Row => ({
    place,
    run: { job: job({ name }), points: [] },
    last: best,
    best,
    syncs: 0,
    bytes,
    ratio: undefined,
    reached: undefined,
  });
  const rows = [row("a", 0, 0.5, 30), row("b", 1, undefined, 10), row("c", 2, 0.9, 20), row("d", 3, NaN, 40)];
  const order = (...given: [Parameters<typeof sortRows>[1], Parameters<typeof sortRows>[2]]) =>
    sortRows(rows, ...given).map(({ run, place }) => `${run.job.name}${place}`);
  expect(order("given", "accuracy")).toEqual(["a0", "b1", "c2", "d3"]);
  expect(order("best", "accuracy")).toEqual(["c2", "a0", "b1", "d3"]);
  expect(order("best", "loss")).toEqual(["a0", "c2", "b1", "d3"]);
  expect(order("bytes", "accuracy")).toEqual(["b1", "c2", "a0", "d3"]);
});

test("only what differs is told", () => {
  const run = (name: string, spec: Record<string, unknown>): Run => ({ job: job({ name, spec: { name, ...spec } }), points: [] });
  const found = configDifferences([
    run("a", { rounds: 5, algorithm: { name: "fedavg", lr: 0.1 } }),
    run("b", { rounds: 5, algorithm: { name: "fedprox", lr: 0.1, mu: 1 } }),
  ]);
  expect(found.names).toEqual(["algorithm.name", "algorithm.mu"]);
  expect(found.values.map((values) => values.get("algorithm.mu"))).toEqual([undefined, "1"]);
  expect(configDifferences([run("a", { rounds: 5 }), run("b", { rounds: 5 })]).names).toEqual([]);
});

test("runs lie over each other at their own places", () => {
  const { x, y, at, diverged } = alignRuns([stops([0.1, 0.8, 0.97], 300), stops([0.2, NaN], 400)], "eval/accuracy", "bytes");
  expect(x).toEqual([0, 300, 400, 600]);
  expect(y).toEqual([
    [0.1, 0.8, undefined, 0.97],
    [0.2, undefined, null, undefined],
  ]);
  expect(at[1]?.map((one) => one?.number)).toEqual([0, 0, 1, 1]);
  expect(diverged).toEqual([2]);
});

test("a hundred runs at places of their own share a grid, and what diverged is not lost", () => {
  const runs = Array.from({ length: 100 }, (_, run) =>
    stops(Array.from({ length: 100 }, (_, number) => (run === 7 && number === 50 ? NaN : 0.5)), 1000 + run),
  );
  const { x, y, diverged } = alignRuns(runs, "eval/accuracy", "bytes");
  expect(x.length).toBeLessThanOrEqual(1001);
  expect(y[7]?.filter((point) => point === null)).toHaveLength(1);
  expect(diverged).toHaveLength(1);
});
