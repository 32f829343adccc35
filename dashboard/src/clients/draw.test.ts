import { expect, test } from "vitest";
import { parse, pixel, ramp } from "./colours";
import { pixels } from "./draw";
import { gridOf } from "./heat";

test("a value has its colour, what diverged has one of its own, what was not reported has none", () => {
  const rows = new Map([["a", [0, 1, NaN, null]]]);
  const grid = gridOf({ rounds: [1, 2, 3, 4], step: 1, rows, metrics: [], nodes: 1 });
  const found = new Uint32Array(pixels(grid, { ramp: ramp(["#000000", "#ffffff"]), bad: "#bb2525" }).buffer);
  expect([...found]).toEqual([pixel([0, 0, 0]), pixel([255, 255, 255]), pixel(parse("#bb2525")), 0]);
});
