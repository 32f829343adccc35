/** The peers' history as points of a chart. */
import type { PeersPoint } from "../api/types";

export type PeerMetric = "accuracy" | "loss" | "consensus" | "residual" | "coverage";

/** Return whether the metric lies between 0 and 1. */
export const isShare = (measure: PeerMetric): boolean => measure === "accuracy" || measure === "coverage";

/** Points are 5 s apart in gossip mode; the line is broken where they are further apart than this (ms). */
const GAP = 20_000;

export interface Curve {
  /** Unix time of the coordinator's clock (s). */
  x: number[];
  y: (number | null)[];
  /** The history's point at each x; undefined where the line is broken. */
  points: (PeersPoint | undefined)[];
}

/** Return the line of a metric. It is broken where the metric is unknown and where the job was not in gossip mode. */
export function toCurve(history: readonly PeersPoint[], measure: PeerMetric): Curve {
  const made: Curve = { x: [], y: [], points: [] };
  let before = NaN;
  for (const point of history) {
    const at = Date.parse(point.at);
    if (at <= before) continue;
    if (at - before > GAP) put(made, (before + at) / 2000, null, undefined);
    put(made, at / 1000, point[measure] ?? null, point);
    before = at;
  }
  return made;
}

function put({ x, y, points }: Curve, at: number, value: number | null, point: PeersPoint | undefined): void {
  x.push(at);
  y.push(value);
  points.push(point);
}

/** Smaller values count as zero on a logarithmic axis. */
const LEAST = 1e-16;

/** Return whole powers of ten around the positive values; at least one decade. */
export function decades(values: readonly (number | null)[]): [low: number, high: number] {
  const known = values.filter((value): value is number => value !== null && value > LEAST);
  if (known.length === 0) return [1e-3, 1];
  const low = 10 ** Math.floor(Math.log10(Math.min(...known)));
  const high = 10 ** Math.ceil(Math.log10(Math.max(...known)));
  return [low, high > low ? high : low * 10];
}

/** Move values to the lower end of a logarithmic axis, which has no place for zero. */
export const clampLow = (values: readonly (number | null)[], low: number): (number | null)[] =>
  values.map((value) => (value === null ? null : Math.max(value, low)));

/** Return at most about `most` powers of ten as ticks. */
export function decadeTicks(low: number, high: number, most = 5): number[] {
  const [from, to] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
  const step = Math.ceil((to - from) / most) || 1;
  const ticks: number[] = [];
  for (let exponent = from; exponent <= to; exponent += step) ticks.push(10 ** exponent);
  return ticks;
}

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** Return 1, 0.1, 10⁻³. */
export function formatPowerOfTen(value: number): string {
  const exponent = Math.round(Math.log10(value));
  if (exponent >= -2 && exponent <= 3) return String(Number((10 ** exponent).toPrecision(1)));
  const digits = [...String(Math.abs(exponent))].map((digit) => RAISED[Number(digit)]).join("");
  return `10${exponent < 0 ? "⁻" : ""}${digits}`;
}
