import { expect, test } from "vitest";
import { smooth } from "./smoothing";

test("a level line stays where it is, from its first point on", () => {
  expect(smooth([3, 3, 3], 0.9).map((value) => (value as number).toFixed(9))).toEqual(Array(3).fill("3.000000000"));
});

test("each point is the mean of those before it, the newest counting most", () => {
  const [first, second, third] = smooth([1, 0, 4], 0.5) as number[];
  expect(first).toBe(1);
  expect(second).toBeCloseTo(1 / 3); // (0.5 · 0 + 0.25 · 1) / 0.75
  expect(third).toBeCloseTo((0.5 * 4 + 0.125 * 1) / 0.875);
});

test("what was not measured or diverged stays so, and the mean goes on behind it", () => {
  const line = smooth([2, undefined, null, 2], 0.9);
  expect(line.slice(0, 3)).toEqual([2, undefined, null]);
  expect(line[3]).toBeCloseTo(2);
});
