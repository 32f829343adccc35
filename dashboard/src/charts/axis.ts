/** What runs along a chart: rounds (or versions), the time since the start, the time of day, or the bytes that were spent. */
import type { Version } from "../api/types";
import { bytes, count, figure } from "../format/number";
import { clock as clockTime, duration, utc } from "../format/time";
import { capital, type Unit } from "../format/unit";

/** Those that runs of different days have in common. */
export const AXES = ["round", "time", "bytes"] as const;
/** Those of one run: "time" is relative to its start. */
export const RUN_AXES = ["round", "clock", "time", "bytes"] as const;
export type Axis = (typeof RUN_AXES)[number];

/** `alone`: beside the time of day, time is said to be relative. */
export function axisLabel(axis: Axis, unit: Unit, alone = true): string {
  if (axis === "round") return capital(unit);
  if (axis === "clock") return "Time";
  return axis === "time" && !alone ? "Relative" : capital(axis);
}

export function position(version: Version, axis: Axis): number {
  switch (axis) {
    case "round":
      return version.number;
    case "clock":
      return Date.parse(version.closed_at) / 1000;
    case "time":
      return version.elapsed_s;
    case "bytes":
      return version.total_bytes;
  }
}

export function tick(value: number, axis: Exclude<Axis, "clock">): string {
  if (axis === "round") return Number.isInteger(value) ? count(value) : "";
  return axis === "time" ? shortTime(value) : shortBytes(value);
}

/** Local times of day for ticks that lie `step` s apart; the day alone where they are days. */
export function clockTick(at: number, step: number): string {
  const moment = new Date(at * 1000);
  if (step >= 86_400) return moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return moment.toLocaleTimeString("en-GB").slice(0, step < 60 ? 8 : 5);
}

/** The place under the pointer, in words. */
export function place(version: Version, axis: Axis, unit: Unit): string {
  const here = `${unit} ${count(version.number)}`;
  if (axis === "round") return here;
  if (axis === "clock") return `${here} · ${clockTime(Date.parse(version.closed_at), Date.now())} (${utc(Date.parse(version.closed_at)).slice(11)})`;
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

/** A share of one at a tick: 2.5% between 0 and 5%, and never 3%. */
export const shortPercent = (value: number): string => `${Number((value * 100).toPrecision(3))}%`;

/** A figure without the zeros that only say how exact it is. */
export function shortFigure(value: number): string {
  return value === 0
    ? "0"
    : figure(value)
        .replace(/\.0+$/, "")
        .replace(/(\.\d*?)0+$/, "$1");
}
