import { expect, test } from "vitest";
import { version } from "../test/factories";
import { axisLabel, axisTitle, formatClockTick, describePoint, axisValue, shortFigure, formatTick, shortPercent } from "./axis";

test("ticks are short", () => {
  expect(formatTick(1000, "round")).toBe("1,000");
  expect(formatTick(2.5, "round")).toBe("");
  expect([0, 30, 60, 90, 7200, 8100].map((at) => formatTick(at, "time"))).toEqual(["0", "30s", "1m", "1m30s", "2h", "2h15m"]);
  expect([0, 2_500_000, 5_000_000, 120_000].map((at) => formatTick(at, "bytes"))).toEqual(["0", "2.5 MB", "5 MB", "120 kB"]);
});

test("a loss is written without idle zeros", () => {
  expect([0, 0.05, 0.5, 2, 2.5, 10, 150, 1.8e8].map(shortFigure)).toEqual([
    "0",
    "0.05",
    "0.5",
    "2",
    "2.5",
    "10",
    "150",
    "1.8e8",
  ]);
});

test("the place under the pointer names the round on every axis", () => {
  const at = version(12, {}, { elapsed_s: 75, total_bytes: 4_100_000 });
  expect(describePoint(at, "round", "round")).toBe("round 12");
  expect(describePoint(at, "time", "round")).toBe("round 12 · 1 m 15 s");
  expect(describePoint(at, "bytes", "version")).toBe("version 12 · 4.10 MB");
});

test("times of day are as exact as their ticks are near", () => {
  const at = new Date(2026, 10, 22, 20, 5, 9).getTime() / 1000;
  expect([5, 60, 3600, 86_400].map((step) => formatClockTick(at, step))).toEqual(["20:05:09", "20:05", "20:05", "22 Nov"]);
  expect(axisValue(version(1, {}, { closed_at: "2026-11-22T20:05:09Z" }), "clock")).toBe(1_795_377_909);
});

test("a tick says where it stands, and not the next whole per cent", () => {
  expect([0, 0.025, 0.5, 1, 0.0001].map(shortPercent)).toEqual(["0%", "2.5%", "50%", "100%", "0.01%"]);
});

test("time is called elapsed where the time of day stands beside it", () => {
  expect([axisLabel("time", "round"), axisLabel("time", "round", false), axisLabel("clock", "round", false)]).toEqual([
    "Time",
    "Elapsed",
    "Time",
  ]);
});

test("a title says along which axis a chart is drawn", () => {
  expect((["round", "clock", "time", "bytes"] as const).map((axis) => axisTitle(axis, "version"))).toEqual([
    "version",
    "time of day",
    "elapsed time",
    "bytes up and down",
  ]);
});
