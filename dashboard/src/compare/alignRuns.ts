/** Several runs along one axis: each has its points at places of its own. */
import type { Version } from "../api/types";
import type { Axis } from "../charts/axis";
import { buildLines, type Lines, type Point } from "../charts/series";
import type { Stop } from "./runs";

export interface Overlay extends Lines {
  /** The version that a run had reached at each place: [run][place]. */
  at: (Stop | undefined)[][];
}

/** So many places are more than a screen has pixels; beyond, each run's points are moved onto a grid of `GRID`. */
const PLACES_MAX = 3000;
const GRID = 1000;

export function overlay(runs: Stop[][], metric: string, axis: Axis): Overlay {
  // Lines are made of what a stop has: its number, time, bytes and metrics.
  const single = runs.map((stops) => buildLines(stops as Version[], [metric], axis));
  const snap = snapper(single.flatMap((lines) => lines.x));
  const own = single.map((lines) => lines.x.map(snap));
  const x = [...new Set(own.flat())].sort((a, b) => a - b);
  const places = new Map(x.map((value, index) => [value, index]));
  const y: Point[][] = single.map(() => new Array<Point>(x.length).fill(undefined));
  const at: (Stop | undefined)[][] = runs.map(() => new Array<Stop | undefined>(x.length).fill(undefined));
  single.forEach((lines, run) => {
    own[run]!.forEach((value, index) => {
      const place = places.get(value) as number;
      const point = lines.y[0]?.[index];
      // Of several in one place the last stays, unless one of them diverged.
      if (point !== undefined && y[run]![place] !== null) y[run]![place] = point;
      at[run]![place] = runs[run]![index];
    });
    // Between its points a run stands where it last was.
    for (let place = 1; place < x.length; place++) at[run]![place] ??= at[run]![place - 1];
  });
  const diverged = x.map((_, index) => index).filter((index) => y.some((line) => line[index] === null));
  return { x, y, diverged, at };
}

/** Leaves few places as they are; many are moved to the next line of a grid over all of them. */
function snapper(all: number[]): (value: number) => number {
  if (new Set(all).size <= PLACES_MAX) return (value) => value;
  let [low, high] = [Infinity, -Infinity];
  for (const value of all) [low, high] = [Math.min(low, value), Math.max(high, value)];
  const step = (high - low) / GRID;
  return (value) => low + Math.round((value - low) / step) * step;
}
