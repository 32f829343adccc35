/** From versions to what a chart draws. */
import type { Version } from "../api/types";
import { position, type Axis } from "./axis";

/** undefined: not measured at this version (the line passes by); null: diverged (a mark of its own). */
export type Point = number | null | undefined;

export interface Lines {
  /** Ascending. */
  x: number[];
  /** One list per name, as long as `x`. */
  y: Point[][];
  /** Indices into `x` where any of the lines diverged. */
  diverged: number[];
  /** Indices into `x` of versions that not all who were asked have measured. */
  provisional?: number[];
}

export function buildLines(versions: Version[], names: string[], axis: Axis): Lines {
  const x: number[] = [];
  let furthest = -Infinity;
  for (const version of versions) {
    // A clock that was set back must not fold the line over itself.
    furthest = Math.max(furthest, position(version, axis));
    x.push(furthest);
  }
  const y = names.map((name) => versions.map((version) => point(version.metrics[name])));
  const diverged = x.map((_, index) => index).filter((index) => y.some((line) => line[index] === null));
  const provisional = x.map((_, index) => index).filter((index) => versions[index]?.provisional);
  return { x, y, diverged, provisional };
}

/** The versions that a zoom shows, and one more on either side, to which lines go out of the picture. */
export function within(versions: Version[], axis: Axis, { min, max }: { min: number; max: number }): Version[] {
  const from = versions.findIndex((version) => position(version, axis) >= min);
  const to = versions.findLastIndex((version) => position(version, axis) <= max);
  return from === -1 || to < from ? versions : versions.slice(Math.max(0, from - 1), to + 2);
}

/** As long as the lines, and empty. */
export const none = ({ x }: Lines): Point[] => x.map(() => undefined);

/** The lines and one more, of the same length; its diverged points count. */
export function withLine(lines: Lines, line: Point[] | undefined): Lines {
  if (line === undefined || line.length !== lines.x.length) return lines;
  const y = [...lines.y, line];
  const diverged = lines.x.map((_, index) => index).filter((index) => y.some((one) => one[index] === null));
  return { ...lines, y, diverged };
}

function point(value: number | undefined): Point {
  if (value === undefined) return undefined;
  return Number.isFinite(value) ? value : null;
}

/** Where one line leaves for its diverged points and returns: pairs of a finite index and its diverged neighbour. */
export function exits(line: Point[]): [from: number, to: number][] {
  const pairs: [number, number][] = [];
  let before: number | undefined;
  line.forEach((value, index) => {
    if (value === undefined) return;
    if (before !== undefined && (value === null) !== (line[before] === null)) {
      pairs.push(value === null ? [before, index] : [index, before]);
    }
    before = index;
  });
  return pairs;
}

export interface Traffic {
  /** Round numbers. */
  x: number[];
  up: number[];
  /** Negative: drawn below the line. */
  down: number[];
}

/** Bytes per round; version 0 is the initial model and was no round. */
export function buildTraffic(versions: Version[]): Traffic {
  const rounds = versions.filter((version) => version.number > 0);
  return {
    x: rounds.map((version) => version.number),
    up: rounds.map((version) => version.up_bytes),
    down: rounds.map((version) => -version.down_bytes),
  };
}

/** The same for a logarithmic axis: a little beyond the data, whose least and greatest positive values are given. */
export function logRange(low: number | null, high: number | null, marked = false): [number, number] {
  if (low === null || high === null || !(low > 0) || !(high > 0)) return [0.1, 1];
  const reach = Math.max(high / low, 1.5);
  return [low / reach ** 0.06, high * reach ** (marked ? 0.3 : 0.08)];
}

/** A range for an accuracy axis: whole tenths around the data, from zero where that is near. */
export function accuracyRange(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  const tenth = Math.floor(low * 10 + 1e-9) / 10;
  const bottom = tenth > 0.1 ? tenth : Math.min(0, tenth);
  const top = Math.ceil(high * 10 - 1e-9) / 10;
  if (top > bottom) return [bottom, top];
  return bottom >= 0.1 ? [bottom - 0.1, top] : [bottom, bottom + 0.1];
}

/** A range for a loss axis: from zero (or a negative loss) to above the data, far above if marks stand there. */
export function lossRange(low: number | null, high: number | null, marked = false): [number, number] {
  if (low === null || high === null) return [0, 1];
  const bottom = Math.min(0, low);
  return [bottom, high > bottom ? high + (high - bottom) * (marked ? 0.3 : 0.08) : bottom + 1];
}
