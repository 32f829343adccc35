import { expect, test } from "vitest";
import { parse, pixel, ramp, step } from "./colours";

test("a ramp goes from its first colour over the others to its last", () => {
  const found = ramp(["#000000", "#ff0000", "#ffffff"]);
  expect(found).toHaveLength(256);
  expect(found[0]).toBe(pixel([0, 0, 0]));
  expect(found[255]).toBe(pixel([255, 255, 255]));
  expect((found[127] as number) & 255).toBeGreaterThan(250);
  expect(parse("#0c1c26")).toEqual([12, 28, 38]);
});

test("what lies outside has the colour of the end", () => {
  expect([step(-5, 0, 1), step(0.5, 0, 1), step(7, 0, 1)]).toEqual([0, 128, 255]);
});
