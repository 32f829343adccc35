/** Formats of numbers. Unknown values are "–", values that are not finite "diverged". */

export const UNKNOWN = "–";
export const DIVERGED = "diverged";

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** Format bytes with three digits: 999 B, 1.02 kB, 47.5 MB. */
export function formatBytes(count: number): string {
  let value = Math.abs(count);
  let unit = 0;
  // 999.5 would be rounded to 1000.
  while (value >= (unit === 0 ? 1000 : 999.5) && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${count < 0 ? "−" : ""}${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** Format a share as a percentage: 0.9342 is 93.4%. */
export function formatPercent(value: number | undefined | null, digits = 1): string {
  if (value === undefined || value === null) return UNKNOWN;
  if (!Number.isFinite(value)) return DIVERGED;
  return `${(value * 100).toFixed(digits)}%`;
}

/** Format a number with three significant digits: 0.214, 12.3, 1.8e8. */
export function formatNumber(value: number | undefined | null): string {
  if (value === undefined || value === null) return UNKNOWN;
  if (!Number.isFinite(value)) return DIVERGED;
  const size = Math.abs(value);
  if (size !== 0 && (size >= 100_000 || size < 0.001)) return value.toExponential(1).replace("e+", "e");
  if (size >= 100) return value.toFixed(0);
  return value.toFixed(size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

export function formatCount(value: number): string {
  return value.toLocaleString("en");
}

/** Return a count with its noun: "1 node", "3 nodes". */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${formatCount(value)} ${value === 1 ? one : many}`;
}
