import { expect, test } from "vitest";
import { parseColor, toPixel, colorScale } from "./colorScale";
import { pixels } from "./drawHeatMap";
import { toGrid } from "./heatMapData";

test("a value has its color, what diverged has one of its own, what was not reported has none", () => {
  const rows = new Map([["a", [0, 1, NaN, null]]]);
  const grid = toGrid({ rounds: [1, 2, 3, 4], step: 1, rows, metrics: [], nodes: 1 });
  const found = new Uint32Array(pixels(grid, { scale: colorScale(["#000000", "#ffffff"]), bad: "#bb2525" }).buffer);
  expect([...found]).toEqual([toPixel([0, 0, 0]), toPixel([255, 255, 255]), toPixel(parseColor("#bb2525")), 0]);
});
