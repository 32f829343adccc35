/** Aligns several runs on one axis, on which each has its own x values. */
import type { Version } from "../api/types";
import type { Axis } from "../charts/axis";
import { buildLines, type Lines, type Point } from "../charts/series";
import type { RunPoint } from "./comparison";

export interface AlignedRuns extends Lines {
  /** The version that a run had reached at each x: [run][x]. */
  at: (RunPoint | undefined)[][];
}

/** With more x values than this, which exceeds the pixels of a screen, points are moved to a grid. */
const PLACES_MAX = 3000;
const GRID = 1000;

export function alignRuns(runs: RunPoint[][], metric: string, axis: Axis): AlignedRuns {
  // `buildLines` uses only the fields of a RunPoint.
  const single = runs.map((stops) => buildLines(stops as Version[], [metric], axis));
  const snap = gridSnapper(single.flatMap((lines) => lines.x));
  const own = single.map((lines) => lines.x.map(snap));
  const x = [...new Set(own.flat())].sort((a, b) => a - b);
  const places = new Map(x.map((value, index) => [value, index]));
  const y: Point[][] = single.map(() => new Array<Point>(x.length).fill(undefined));
  const at: (RunPoint | undefined)[][] = runs.map(() => new Array<RunPoint | undefined>(x.length).fill(undefined));
  single.forEach((lines, run) => {
    own[run]!.forEach((value, index) => {
      const place = places.get(value) as number;
      const point = lines.y[0]?.[index];
      // The last of several points at one x counts, unless one diverged.
      if (point !== undefined && y[run]![place] !== null) y[run]![place] = point;
      at[run]![place] = runs[run]![index];
    });
    // Between its points a run keeps its last version.
    for (let place = 1; place < x.length; place++) at[run]![place] ??= at[run]![place - 1];
  });
  const diverged = x.map((_, index) => index).filter((index) => y.some((line) => line[index] === null));
  return { x, y, diverged, at };
}

/** Return a function that moves x values to a grid if there are many. */
function gridSnapper(all: number[]): (value: number) => number {
  if (new Set(all).size <= PLACES_MAX) return (value) => value;
  let [low, high] = [Infinity, -Infinity];
  for (const value of all) [low, high] = [Math.min(low, value), Math.max(high, value)];
  const step = (high - low) / GRID;
  return (value) => low + Math.round((value - low) / step) * step;
}
