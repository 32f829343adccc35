import { expect, test } from "vitest";
import { formatAgo, formatTime, formatDuration, formatUtc } from "./time";

test.each([
  [0, "0 s"],
  [0.42, "0.4 s"],
  [9.96, "10 s"],
  [59.4, "59 s"],
  [59.6, "1 m 00 s"],
  [185, "3 m 05 s"],
  [8040, "2 h 14 m"],
  [273_600, "3 d 4 h"],
  [null, "–"],
  [NaN, "–"],
])("%s seconds are %s", (seconds, text) => {
  expect(formatDuration(seconds)).toBe(text);
});

test("what was just now is now, everything else has one unit", () => {
  expect(formatAgo(1.4)).toBe("now");
  expect(formatAgo(38)).toBe("38 s ago");
  expect(formatAgo(412)).toBe("7 m ago");
  expect(formatAgo(90_000)).toBe("1 d ago");
});

test("a moment of another day carries its day", () => {
  const noon = new Date(2026, 10, 21, 12, 0, 5).getTime();
  expect(formatTime(noon, noon + 3_600_000)).toBe("12:00:05");
  expect(formatTime(noon, noon + 86_400_000)).toBe("21 Nov 12:00");
  expect(formatTime(NaN, noon)).toBe("–");
});

test("a moment is told in UTC, whatever the clock here says", () => {
  expect(formatUtc(Date.UTC(2026, 10, 24, 12, 5, 9))).toBe("2026-11-24 12:05:09 UTC");
  expect(formatUtc(NaN)).toBe("–");
});
