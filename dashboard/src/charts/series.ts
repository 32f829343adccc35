/** Data and ranges of charts, computed from versions. */
import type { Version } from "../api/types";
import { axisValue, type Axis } from "./axis";

/** undefined: not measured, and skipped by the line; null: diverged. */
export type Point = number | null | undefined;

export interface Lines {
  /** Ascending. */
  x: number[];
  /** One list per name, as long as `x`. */
  y: Point[][];
  /** Indices into `x` where any of the lines diverged. */
  diverged: number[];
  /** Indices into `x` of provisional versions. */
  provisional?: number[];
  /** The stages of a network that grows, from the second one on, each with the index into `x` at which it begins. */
  stages?: [index: number, stage: number][];
}

export function buildLines(versions: Version[], names: string[], axis: Axis): Lines {
  const x: number[] = [];
  let furthest = -Infinity;
  for (const version of versions) {
    // x must not decrease, even if the clock was set back.
    furthest = Math.max(furthest, axisValue(version, axis));
    x.push(furthest);
  }
  const y = names.map((name) => versions.map((version) => toPoint(version.metrics[name])));
  const diverged = x.map((_, index) => index).filter((index) => y.some((line) => line[index] === null));
  const provisional = x.map((_, index) => index).filter((index) => versions[index]?.provisional);
  return { x, y, diverged, provisional };
}

/** Return `Lines.stages` of these versions. */
export function stageStarts(versions: Version[]): [index: number, stage: number][] {
  const stages = versions.map(({ numbers }) => numbers.stage ?? 0);
  return stages.flatMap((stage, index) => (index > 0 && stage !== stages[index - 1] ? [[index, stage] as [number, number]] : []));
}

/** Return the versions inside a zoom, and one more on either side, to which lines continue. */
export function versionsInRange(versions: Version[], axis: Axis, { min, max }: { min: number; max: number }): Version[] {
  const from = versions.findIndex((version) => axisValue(version, axis) >= min);
  const to = versions.findLastIndex((version) => axisValue(version, axis) <= max);
  return from === -1 || to < from ? versions : versions.slice(Math.max(0, from - 1), to + 2);
}

/** Return a line without values. */
export const emptyLine = ({ x }: Lines): Point[] => x.map(() => undefined);

/** Add a line of the same length, with its diverged points. */
export function addLine(lines: Lines, line: Point[] | undefined): Lines {
  if (line === undefined || line.length !== lines.x.length) return lines;
  const y = [...lines.y, line];
  const diverged = lines.x.map((_, index) => index).filter((index) => y.some((one) => one[index] === null));
  return { ...lines, y, diverged };
}

export function toPoint(value: number | undefined): Point {
  if (value === undefined) return undefined;
  return Number.isFinite(value) ? value : null;
}

/** Return the segments between finite points and their diverged neighbors, as pairs of indices. */
export function divergedSegments(line: Point[]): [from: number, to: number][] {
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

/** Return the bytes per round. Version 0, the initial model, has no round. */
export function buildTraffic(versions: Version[]): Traffic {
  const rounds = versions.filter((version) => version.number > 0);
  return {
    x: rounds.map((version) => version.number),
    up: rounds.map((version) => version.up_bytes),
    down: rounds.map((version) => -version.down_bytes),
  };
}

/** Return the range of a logarithmic axis, a little wider than the data. */
export function logRange(low: number | null, high: number | null, marked = false): [number, number] {
  if (low === null || high === null || !(low > 0) || !(high > 0)) return [0.1, 1];
  const reach = Math.max(high / low, 1.5);
  return [low / reach ** 0.06, high * reach ** (marked ? 0.3 : 0.08)];
}

/** Return the range of an accuracy axis: whole tenths around the data, from zero if that is near. */
export function accuracyRange(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  const tenth = Math.floor(low * 10 + 1e-9) / 10;
  const bottom = tenth > 0.1 ? tenth : Math.min(0, tenth);
  const top = Math.ceil(high * 10 - 1e-9) / 10;
  if (top > bottom) return [bottom, top];
  return bottom >= 0.1 ? [bottom - 0.1, top] : [bottom, bottom + 0.1];
}

/** Return the range of a loss axis: from zero or a negative loss, with space for marks if there are any. */
export function lossRange(low: number | null, high: number | null, marked = false): [number, number] {
  if (low === null || high === null) return [0, 1];
  const bottom = Math.min(0, low);
  return [bottom, high > bottom ? high + (high - bottom) * (marked ? 0.3 : 0.08) : bottom + 1];
}
