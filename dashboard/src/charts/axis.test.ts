import { expect, test } from "vitest";
import { version } from "../test/make";
import { place, shortFigure, tick } from "./axis";

test("ticks are short", () => {
  expect(tick(1000, "round")).toBe("1,000");
  expect(tick(2.5, "round")).toBe("");
  expect([0, 30, 60, 90, 7200, 8100].map((at) => tick(at, "time"))).toEqual(["0", "30s", "1m", "1m30s", "2h", "2h15m"]);
  expect([0, 2_500_000, 5_000_000, 120_000].map((at) => tick(at, "bytes"))).toEqual(["0", "2.5 MB", "5 MB", "120 kB"]);
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
  expect(place(at, "round", "round")).toBe("round 12");
  expect(place(at, "time", "round")).toBe("round 12 · 1 m 15 s");
  expect(place(at, "bytes", "version")).toBe("version 12 · 4.10 MB");
});
