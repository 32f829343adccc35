/** The peers' history as a chart draws it: along the clock, on an axis of powers of ten or of shares. */
import type { PeersPoint } from "../api/types";

export type Measure = "accuracy" | "loss" | "consensus" | "residual" | "coverage";

/** Those that lie between 0 and 1. */
export const isShare = (measure: Measure): boolean => measure === "accuracy" || measure === "coverage";

/** Points are 5 s apart while the job is away; between two that are further apart it was elsewhere (ms). */
const GAP = 20_000;

export interface Curve {
  /** Seconds since 1970, by the coordinator's clock. */
  x: number[];
  y: (number | null)[];
  /** The point of the history at each place, undefined where the line is broken. */
  points: (PeersPoint | undefined)[];
}

/** What is not known breaks the line, and so does the time that the job spent elsewhere. */
export function curve(history: readonly PeersPoint[], measure: Measure): Curve {
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

/** Below this a number is nought for an axis of powers of ten. */
const LEAST = 1e-16;

/** Whole powers of ten around what is above nought; at least one decade. */
export function decades(values: readonly (number | null)[]): [low: number, high: number] {
  const known = values.filter((value): value is number => value !== null && value > LEAST);
  if (known.length === 0) return [1e-3, 1];
  const low = 10 ** Math.floor(Math.log10(Math.min(...known)));
  const high = 10 ** Math.ceil(Math.log10(Math.max(...known)));
  return [low, high > low ? high : low * 10];
}

/** What is nought has no place on such an axis: it is drawn at its foot. */
export const floored = (values: readonly (number | null)[], low: number): (number | null)[] =>
  values.map((value) => (value === null ? null : Math.max(value, low)));

/** The powers of ten that are written, few enough to be read. */
export function tens(low: number, high: number, most = 5): number[] {
  const [from, to] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
  const step = Math.ceil((to - from) / most) || 1;
  const found: number[] = [];
  for (let power = from; power <= to; power += step) found.push(10 ** power);
  return found;
}

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** 1, 0.1, 10⁻³. */
export function power(value: number): string {
  const exponent = Math.round(Math.log10(value));
  if (exponent >= -2 && exponent <= 3) return String(Number((10 ** exponent).toPrecision(1)));
  const digits = [...String(Math.abs(exponent))].map((digit) => RAISED[Number(digit)]).join("");
  return `10${exponent < 0 ? "⁻" : ""}${digits}`;
}
