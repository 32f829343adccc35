import { expect, test } from "vitest";
import { formatBytes, DIVERGED, formatNumber, formatPercent, plural, UNKNOWN } from "./number";

test.each([
  [0, "0 B"],
  [999, "999 B"],
  [1000, "1.00 kB"],
  [1023, "1.02 kB"],
  [9_995, "10.0 kB"],
  [47_512_000, "47.5 MB"],
  [99_960, "100 kB"],
  [999_499, "999 kB"],
  [999_500, "1.00 MB"],
  [4.35e9, "4.35 GB"],
  [-2500, "−2.50 kB"],
])("%d bytes are %s", (count, text) => {
  expect(formatBytes(count)).toBe(text);
});

test("a share is a percentage; unknown and diverged are said, not left empty", () => {
  expect(formatPercent(0.9342)).toBe("93.4%");
  expect(formatPercent(0.9342, 0)).toBe("93%");
  expect(formatPercent(undefined)).toBe(UNKNOWN);
  expect(formatPercent(null)).toBe(UNKNOWN);
  expect(formatPercent(NaN)).toBe(DIVERGED);
  expect(formatPercent(-Infinity)).toBe(DIVERGED);
});

test.each([
  [0, "0.000"],
  [0.2137, "0.214"],
  [2.3026, "2.30"],
  [12.34, "12.3"],
  [54_321, "54321"],
  [1.8e8, "1.8e8"],
  [0.00042, "4.2e-4"],
  [Infinity, DIVERGED],
  [undefined, UNKNOWN],
])("the figure %s is written %s", (value, text) => {
  expect(formatNumber(value)).toBe(text);
});

test("one node, many nodes", () => {
  expect(plural(1, "node")).toBe("1 node");
  expect(plural(1200, "node")).toBe("1,200 nodes");
});
