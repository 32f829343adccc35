/** Formats of durations (s) and times (ms). */
import { UNKNOWN } from "./number";

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Format a duration in its two largest units: 0.4 s, 12 s, 3 m 05 s, 2 h 14 m, 3 d 4 h. */
export function formatDuration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return UNKNOWN;
  if (seconds < 9.95) return `${(Math.round(Math.max(0, seconds) * 10) / 10).toString()} s`;
  const whole = Math.round(seconds);
  if (whole < MINUTE) return `${whole} s`;
  if (whole < HOUR) return pair(whole, MINUTE, "m", 1, "s");
  if (whole < DAY) return pair(whole, HOUR, "h", MINUTE, "m");
  const hours = Math.floor((whole % DAY) / HOUR);
  return `${Math.floor(whole / DAY)} d ${hours} h`;
}

function pair(whole: number, large: number, largeUnit: string, small: number, smallUnit: string): string {
  const rest = Math.floor((whole % large) / small);
  return `${Math.floor(whole / large)} ${largeUnit} ${String(rest).padStart(2, "0")} ${smallUnit}`;
}

/** Format the time since an event: "now", "12 s ago", "3 m ago". */
export function formatAgo(seconds: number): string {
  if (seconds < 2) return "now";
  return `${formatCoarse(seconds)} ago`;
}

/** Format a duration in one unit: 12 s, 3 m, 2 h, 5 d. */
export function formatCoarse(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < MINUTE) return `${whole} s`;
  if (whole < HOUR) return `${Math.round(whole / MINUTE)} m`;
  if (whole < DAY) return `${Math.round(whole / HOUR)} h`;
  return `${Math.round(whole / DAY)} d`;
}

/** Format a local time, with the date if it is not the day of `now`. */
export function formatTime(at: number, now: number): string {
  if (Number.isNaN(at)) return UNKNOWN;
  const moment = new Date(at);
  const time = moment.toLocaleTimeString("en-GB");
  if (moment.toDateString() === new Date(now).toDateString()) return time;
  return `${moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time.slice(0, 5)}`;
}

/** Format a time in UTC: 2026-11-24 12:05:09 UTC. */
export function formatUtc(at: number): string {
  if (Number.isNaN(at)) return UNKNOWN;
  return `${new Date(at).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}
