import { expect, test } from "vitest";
import { xExtent } from "./xExtent";

test("around a single place there is as much room as it needs, whatever uPlot made of it", () => {
  expect(xExtent([0], 0, 100)).toEqual([0, 0]);
  expect(xExtent([7], 6, 8)).toEqual([7, 7]);
  expect(xExtent([0, 3], 0, 3)).toEqual([0, 3]);
  expect(xExtent([], 0, 3)).toEqual([0, 3]);
});
