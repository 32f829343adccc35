import { expect, test } from "vitest";
import { spanOf } from "./single";

test("around a single place there is as much room as it needs, whatever uPlot made of it", () => {
  expect(spanOf([0], 0, 100)).toEqual([0, 0]);
  expect(spanOf([7], 6, 8)).toEqual([7, 7]);
  expect(spanOf([0, 3], 0, 3)).toEqual([0, 3]);
  expect(spanOf([], 0, 3)).toEqual([0, 3]);
});
