import { expect, test } from "vitest";
import { parseColor, toPixel, colorScale, scaleStep } from "./colorScale";

test("a ramp goes from its first color over the others to its last", () => {
  const found = colorScale(["#000000", "#ff0000", "#ffffff"]);
  expect(found).toHaveLength(256);
  expect(found[0]).toBe(toPixel([0, 0, 0]));
  expect(found[255]).toBe(toPixel([255, 255, 255]));
  expect((found[127] as number) & 255).toBeGreaterThan(250);
  expect(parseColor("#0c1c26")).toEqual([12, 28, 38]);
});

test("what lies outside has the color of the end", () => {
  expect([scaleStep(-5, 0, 1), scaleStep(0.5, 0, 1), scaleStep(7, 0, 1)]).toEqual([0, 128, 255]);
});
