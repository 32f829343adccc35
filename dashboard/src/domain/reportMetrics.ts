/** What can be drawn by client: how it is called and written. */
import { bytes, count, figure, percent, UNKNOWN } from "../format/number";
import { visible } from "../format/text";
import { duration } from "../format/time";
import type { Cell } from "./heat";

const TITLES: Record<string, string> = {
  seconds: "Seconds per report",
  wait_s: "Waiting for the order",
  download_s: "Download",
  train_s: "Training",
  upload_s: "Upload",
  fold_s: "Checking and folding",
  staleness: "Staleness",
  norm: "Drift (norm of the update)",
  weight: "Weight",
  up_bytes: "Bytes up",
  down_bytes: "Bytes down",
};

const has = (name: string) => Object.hasOwn(TITLES, name);

export const titleOf = (metric: string): string => (has(metric) ? (TITLES[metric] as string) : visible(metric));

const isTime = (metric: string) => metric === "seconds" || (has(metric) && metric.endsWith("_s"));

/** A value in the unit of its quantity. */
export function write(metric: string, value: Cell | undefined): string {
  if (value === null || value === undefined) return UNKNOWN;
  if (Number.isFinite(value)) {
    if (isTime(metric)) return value < 1 ? `${figure(value * 1000)} ms` : duration(value);
    if (metric === "up_bytes" || metric === "down_bytes") return bytes(value);
    if (metric === "staleness" && Number.isInteger(value)) return count(value);
    if (/(^|\/)accuracy$/.test(metric)) return percent(value);
  }
  return figure(value);
}

/** What people look at first, if nobody has chosen. */
export function firstOf(metrics: string[]): string {
  return ["train/loss", "eval/loss", "eval/accuracy"].find((name) => metrics.includes(name)) ?? metrics[0] ?? "train/loss";
}
