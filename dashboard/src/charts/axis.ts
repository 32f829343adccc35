/** What runs along a chart: rounds (or versions), time, or the bytes that were spent. */
import type { Version } from "../api/types";
import { bytes, count, figure } from "../format/number";
import { duration } from "../format/time";
import { capital, type Unit } from "../format/unit";

export const AXES = ["round", "time", "bytes"] as const;
export type Axis = (typeof AXES)[number];

export function axisLabel(axis: Axis, unit: Unit): string {
  return axis === "round" ? capital(unit) : capital(axis);
}

export function position(version: Version, axis: Axis): number {
  if (axis === "round") return version.number;
  return axis === "time" ? version.elapsed_s : version.total_bytes;
}

export function tick(value: number, axis: Axis): string {
  if (axis === "round") return Number.isInteger(value) ? count(value) : "";
  return axis === "time" ? shortTime(value) : shortBytes(value);
}

/** The place under the pointer, in words. */
export function place(version: Version, axis: Axis, unit: Unit): string {
  const here = `${unit} ${count(version.number)}`;
  if (axis === "round") return here;
  return `${here} · ${axis === "time" ? duration(version.elapsed_s) : bytes(version.total_bytes)}`;
}

/** Distances between ticks of a time axis that people count in (seconds). */
export const TIME_STEPS = [
  0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800,
  604_800,
];

function shortTime(seconds: number): string {
  if (seconds === 0) return "0";
  return duration(seconds)
    .replace(/ (\d+ [a-z])$/, (rest) => (/ 0+ /.test(rest) ? "" : rest))
    .replaceAll(" ", "");
}

export function shortBytes(value: number): string {
  return value === 0
    ? "0"
    : bytes(value)
        .replace(/\.0+ /, " ")
        .replace(/(\.\d*?)0+ /, "$1 ");
}

/** A figure without the zeros that only say how exact it is. */
export function shortFigure(value: number): string {
  return value === 0
    ? "0"
    : figure(value)
        .replace(/\.0+$/, "")
        .replace(/(\.\d*?)0+$/, "$1");
}
