import { expect, test } from "vitest";
import { parseZoom, formatZoom } from "./useZoom";

test("a zoom is written shortly and read again", () => {
  expect(formatZoom({ min: 12.0000000004, max: 40.25 })).toBe("12_40.25");
  for (const range of [
    { min: 3, max: 4_100_000 },
    { min: 1_790_000_000.123, max: 1_790_000_003.5 },
    { min: -1, max: 0.5 },
  ]) {
    const again = parseZoom(formatZoom(range));
    expect(again?.min).toBeCloseTo(range.min, 3);
    expect(again?.max).toBeCloseTo(range.max, 3);
  }
});

test.each(["", "5", "5_", "_5", "a_b", "5_5", "9_3", "1_2_3", "-Infinity_3", "NaN_1"])("%o is no zoom", (text) => {
  expect(parseZoom(text)).toBeNull();
});
