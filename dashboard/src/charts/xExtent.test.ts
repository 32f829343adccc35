import { expect, test } from "vitest";
import type uPlot from "uplot";
import { xScale } from "./plotOptions";
import { xExtent } from "./xExtent";

test("around a single place there is as much room as it needs, whatever uPlot made of it", () => {
  expect(xExtent([0], 0, 100)).toEqual([0, 0]);
  expect(xExtent([7], 6, 8)).toEqual([7, 7]);
  expect(xExtent([0, 3], 0, 3)).toEqual([0, 3]);
  expect(xExtent([], 0, 3)).toEqual([0, 3]);
});

test("bars of one round or of two have room on both sides", () => {
  const range = (...x: number[]) =>
    (xScale({ current: null }, 0.75).range as uPlot.Range.Function)({ data: [x] } as unknown as uPlot, x[0] ?? 0, x.at(-1) ?? 0, "x");
  expect(range(1)).toEqual([0.25, 1.75]);
  expect(range(1, 2)).toEqual([0.25, 2.75]);
});
