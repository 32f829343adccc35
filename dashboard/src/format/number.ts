/** Numbers as people read them. What is not known is "–"; what is not finite is "diverged", never an empty place. */

export const UNKNOWN = "–";
export const DIVERGED = "diverged";

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** Decimal units and three digits: 999 B, 1.02 kB, 47.5 MB. */
export function bytes(count: number): string {
  let value = Math.abs(count);
  let unit = 0;
  // 999.5 would be rounded to 1000 of its unit.
  while (value >= (unit === 0 ? 1000 : 999.5) && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${count < 0 ? "−" : ""}${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** A share of one as a percentage: 0.9342 is 93.4%. */
export function percent(value: number | undefined | null, digits = 1): string {
  if (value === undefined || value === null) return UNKNOWN;
  if (!Number.isFinite(value)) return DIVERGED;
  return `${(value * 100).toFixed(digits)}%`;
}

/** Three significant digits: 0.214, 12.3, 1.8e8. */
export function figure(value: number | undefined | null): string {
  if (value === undefined || value === null) return UNKNOWN;
  if (!Number.isFinite(value)) return DIVERGED;
  const size = Math.abs(value);
  if (size !== 0 && (size >= 100_000 || size < 0.001)) return value.toExponential(1).replace("e+", "e");
  if (size >= 100) return value.toFixed(0);
  return value.toFixed(size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

export function count(value: number): string {
  return value.toLocaleString("en");
}

/** "1 node", "3 nodes". */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}
