import { expect, test } from "vitest";
import { cellAt, toGrid, mergeBands, mergeHeat, nearestClient, decodeBands, decodeHeatMap, colorRange, summarizeClients, type HeatMapData } from "./heatMapData";

const raw = (rounds: number[], rows: Record<string, (number | "NaN" | null)[]>, step = 1) => ({
  metric: "train/loss",
  metrics: ["train/loss"],
  rounds,
  step,
  rows: Object.entries(rows).map(([node, values]) => ({ node, values })),
  nodes: Object.keys(rows).length,
  next: null,
});
const heat = (...of: Parameters<typeof raw>): HeatMapData => decodeHeatMap([raw(...of)]);

test("pages are put together, and what diverged is a number that is none", () => {
  const found = decodeHeatMap([raw([1, 2], { a: [0.5, "NaN"] }), raw([1, 2], { constructor: [null, 2] })]);
  expect(found.rows.get("a")).toEqual([0.5, NaN]);
  expect(found.rows.get("constructor")).toEqual([null, 2]);
});

test("what is new takes the place of what it overlaps, and newcomers have no past", () => {
  const known = heat([1, 2, 3], { a: [1, 2, null], gone: [5, 5, 5] });
  const merged = mergeHeat(known, heat([3, 4], { a: [3, 4], b: [null, 9] }));
  expect(merged?.rounds).toEqual([1, 2, 3, 4]);
  expect(merged?.rows.get("a")).toEqual([1, 2, 3, 4]);
  expect(merged?.rows.get("b")).toEqual([null, null, null, 9]);
  expect(merged?.rows.get("gone")).toEqual([5, 5, null, null]);
});

test("rounds of which nothing was told stay empty", () => {
  expect(mergeHeat(heat([1], { a: [1] }), heat([4], { a: [4] }))?.rows.get("a")).toEqual([1, null, null, 4]);
});

test("columns of several rounds are asked for anew", () => {
  expect(mergeHeat(heat([1, 3], { a: [1, 3] }, 2), heat([4], { a: [4] }))).toBeNull();
  expect(mergeHeat(heat([1], { a: [1] }), heat([1, 3], { a: [1, 3] }, 2))).toBeNull();
  expect(mergeHeat(heat([], {}), heat([1], { a: [1] }))).toBeNull();
  expect(mergeHeat(heat([5], { a: [5] }), heat([1], { a: [1] }))).toBeNull();
});

test("nothing new changes nothing", () => {
  const known = heat([1, 2], { a: [1, 2] });
  expect(mergeHeat(known, heat([], {}))?.rows.get("a")).toEqual([1, 2]);
  expect(mergeHeat(known, heat([], {}))?.rounds).toEqual([1, 2]);
});

test("bands: where all diverged there is no mean, and that is said", () => {
  const bands = { metric: "x", clients: [2, 2, 0], rounds: [1, 2, 3], step: 1 };
  const found = decodeBands({ ...bands, mean: [1, null, null], low: [0, null, null], high: [2, null, null], diverged: [0, 2, 0] });
  expect(found.mean).toEqual([1, NaN, null]);
  const more = mergeBands(found, { rounds: [3], step: 1, mean: [7], low: [6], high: [8] });
  expect(more).toEqual({ rounds: [1, 2, 3], step: 1, mean: [1, NaN, 7], low: [0, null, 6], high: [2, null, 8] });
});

test("a grid has its rows in the order in which people count", () => {
  const grid = toGrid(heat([1, 2], { "node-10": [1, 2], "node-9": [null, "NaN"] }));
  expect(grid.nodes).toEqual(["node-9", "node-10"]);
  expect([cellAt(grid, 0, 0), cellAt(grid, 0, 1), cellAt(grid, 1, 1)]).toEqual([null, NaN, 2]);
});

test("one outlier does not take all the colors", () => {
  const values = [...Array.from({ length: 200 }, (_, place) => place / 200), 1e9];
  expect(colorRange(values).high).toBeLessThan(1.1);
  expect(colorRange([])).toEqual({ low: 0, high: 1 });
  expect(colorRange([3, 3])).toEqual({ low: 3, high: 6 });
});

test("each client in figures, and the one that is nearest", () => {
  const grid = toGrid(heat([1, 2, 3], { a: [1, 3, "NaN"], b: [4, null, null] }));
  expect(summarizeClients(grid)).toEqual([
    { node: "a", newest: NaN, mean: 2, low: 1, high: 3, diverged: 1 },
    { node: "b", newest: 4, mean: 4, low: 4, high: 4, diverged: 0 },
  ]);
  expect(nearestClient(grid, 0, 3.6)).toBe("b");
  expect(nearestClient(grid, 2, 0)).toBeUndefined();
});
