/** Titles and formats of the metrics of reports. */
import { formatBytes, formatCount, formatNumber, formatPercent, UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import { formatDuration } from "../format/time";

const TITLES: Record<string, string> = {
  seconds: "Report duration",
  wait_s: "Waiting time",
  download_s: "Download",
  train_s: "Training",
  upload_s: "Upload",
  fold_s: "Aggregation",
  staleness: "Staleness",
  norm: "Update norm",
  weight: "Weight",
  up_bytes: "Bytes up",
  down_bytes: "Bytes down",
};

const has = (name: string) => Object.hasOwn(TITLES, name);

export const reportMetricTitle = (metric: string): string => (has(metric) ? (TITLES[metric] as string) : escapeHidden(metric));

/** Return the title of a chart of a metric, with its unit. */
export function reportChartTitle(metric: string): string {
  const unit = isTime(metric) ? "s" : (UNITS[metric] ?? (/(^|\/)accuracy$/.test(metric) ? "%" : ""));
  return reportMetricTitle(metric) + (unit && ` (${unit})`);
}

const UNITS: Record<string, string> = { staleness: "versions" };

const isTime = (metric: string) => metric === "seconds" || (has(metric) && metric.endsWith("_s"));

/** Format a value in the unit of its metric. */
export function formatReportMetric(metric: string, value: number | null | undefined): string {
  if (value === null || value === undefined) return UNKNOWN;
  if (Number.isFinite(value)) {
    if (isTime(metric)) return value < 1 ? `${formatNumber(value * 1000)} ms` : formatDuration(value);
    if (metric === "up_bytes" || metric === "down_bytes") return formatBytes(value);
    if (metric === "staleness" && Number.isInteger(value)) return formatCount(value);
    if (/(^|\/)accuracy$/.test(metric)) return formatPercent(value);
  }
  return formatNumber(value);
}

/** Return the metric that is shown by default. */
export function defaultMetric(metrics: string[]): string {
  return ["train/loss", "eval/loss", "eval/accuracy"].find((name) => metrics.includes(name)) ?? metrics[0] ?? "train/loss";
}
