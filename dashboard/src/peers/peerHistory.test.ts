import { expect, test } from "vitest";
import { point } from "../test/factories";
import { toCurve, decades, clampLow, formatPowerOfTen, decadeTicks } from "./peerHistory";

test("the line is broken where nothing is known and where the job was elsewhere", () => {
  const history = [point(0), point(5, { consensus: null }), point(10), point(50, { consensus: 0.1 })];
  const found = toCurve(history, "consensus");
  const start = Date.parse(history[0]!.at) / 1000;
  expect(found.x.map((second) => second - start)).toEqual([0, 5, 10, 30, 50]);
  expect(found.y).toEqual([0.02, null, 0.02, null, 0.1]);
  expect(found.points.map((one) => one?.at)).toEqual([...history.slice(0, 3), undefined, history[3]].map((one) => one?.at));
});

test("a clock that was set back does not fold the line over itself", () => {
  expect(toCurve([point(5), point(3), point(10)], "residual").x).toHaveLength(2);
});

test("the axis is of whole powers of ten around what is above nought", () => {
  expect(decades([3e-9, 2e-7, 0, null])).toEqual([1e-9, 1e-6]);
  expect(decades([0.01, 0.01])).toEqual([0.01, 0.1]);
  expect(decades([0, null])).toEqual([1e-3, 1]);
  expect(clampLow([0, 3e-9, null], 1e-9)).toEqual([1e-9, 3e-9, null]);
});

test("few powers of ten are written, and written short", () => {
  expect(decadeTicks(1e-9, 1).map(formatPowerOfTen)).toEqual(["10⁻⁹", "10⁻⁷", "10⁻⁵", "10⁻³", "0.1"]);
  expect([1e-12, 0.01, 1, 10, 1e4].map(formatPowerOfTen)).toEqual(["10⁻¹²", "0.01", "1", "10", "10⁴"]);
});
