/** The x axis of a chart: rounds or versions, time since the start, time of day, or bytes. */
import type { Version } from "../api/types";
import { formatBytes, formatCount, formatNumber } from "../format/number";
import { formatTime as clockTime, formatDuration, formatUtc } from "../format/time";
import { type Unit } from "../domain/unit";
import { capitalize } from "../format/text";

/** Axes on which runs of different days can be compared. */
export const AXES = ["round", "time", "bytes"] as const;
/** Axes of one run; "time" is relative to its start. */
export const RUN_AXES = ["round", "clock", "time", "bytes"] as const;
export type Axis = (typeof RUN_AXES)[number];

/** `alone`: whether the time axis is the only one; beside the time of day it is labeled as elapsed. */
export function axisLabel(axis: Axis, unit: Unit, alone = true): string {
  if (axis === "round") return capitalize(unit);
  if (axis === "clock") return "Time";
  return axis === "time" && !alone ? "Elapsed" : capitalize(axis);
}

/** Name an x axis in a title and beside its ticks. */
export function axisTitle(axis: Axis, unit: Unit): string {
  return { round: unit, clock: "time of day", time: "elapsed time", bytes: "bytes up and down" }[axis];
}

export function axisValue(version: Version, axis: Axis): number {
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

export function formatTick(value: number, axis: Exclude<Axis, "clock">): string {
  if (axis === "round") return Number.isInteger(value) ? formatCount(value) : "";
  return axis === "time" ? shortTime(value) : shortBytes(value);
}

/** Return the local time of day for ticks `step` s apart; only the date if they are days. */
export function formatClockTick(at: number, step: number): string {
  const moment = new Date(at * 1000);
  if (step >= 86_400) return moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return moment.toLocaleTimeString("en-GB").slice(0, step < 60 ? 8 : 5);
}

/** Describe the point under the pointer. */
export function describePoint(version: Version, axis: Axis, unit: Unit): string {
  const here = `${unit} ${formatCount(version.number)}`;
  if (axis === "round") return here;
  if (axis === "clock") return `${here} · ${clockTime(Date.parse(version.closed_at), Date.now())} (${formatUtc(Date.parse(version.closed_at)).slice(11)})`;
  return `${here} · ${axis === "time" ? formatDuration(version.elapsed_s) : formatBytes(version.total_bytes)}`;
}

/** Preferred distances between ticks of a time axis (s). */
export const TIME_STEPS = [
  0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800,
  604_800,
];

function shortTime(seconds: number): string {
  if (seconds === 0) return "0";
  return formatDuration(seconds)
    .replace(/ (\d+ [a-z])$/, (rest) => (/ 0+ /.test(rest) ? "" : rest))
    .replaceAll(" ", "");
}

export function shortBytes(value: number): string {
  return value === 0
    ? "0"
    : formatBytes(value)
        .replace(/\.0+ /, " ")
        .replace(/(\.\d*?)0+ /, "$1 ");
}

/** Format a share for a tick: 2.5% between 0 and 5%. */
export const shortPercent = (value: number): string => `${Number((value * 100).toPrecision(3))}%`;

/** Format a number without trailing zeros. */
export function shortFigure(value: number): string {
  return value === 0
    ? "0"
    : formatNumber(value)
        .replace(/\.0+$/, "")
        .replace(/(\.\d*?)0+$/, "$1");
}
