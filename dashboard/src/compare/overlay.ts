/** Several runs along one axis: each has its points at places of its own. */
import type { Version } from "../api/types";
import type { Axis } from "../charts/axis";
import { buildLines, type Lines, type Point } from "../charts/series";

export interface Overlay extends Lines {
  /** The version that a run had reached at each place: [run][place]. */
  at: (Version | undefined)[][];
}

export function overlay(runs: Version[][], metric: string, axis: Axis): Overlay {
  const single = runs.map((versions) => buildLines(versions, [metric], axis));
  const x = [...new Set(single.flatMap((lines) => lines.x))].sort((a, b) => a - b);
  const places = new Map(x.map((value, index) => [value, index]));
  const y: Point[][] = single.map(() => new Array<Point>(x.length).fill(undefined));
  const at: (Version | undefined)[][] = runs.map(() => new Array<Version | undefined>(x.length).fill(undefined));
  single.forEach((lines, run) => {
    lines.x.forEach((value, index) => {
      const place = places.get(value) as number;
      const point = lines.y[0]?.[index];
      if (point !== undefined) y[run]![place] = point;
      at[run]![place] = runs[run]![index];
    });
    // Between its points a run stands where it last was.
    for (let place = 1; place < x.length; place++) at[run]![place] ??= at[run]![place - 1];
  });
  const diverged = x.map((_, index) => index).filter((index) => y.some((line) => line[index] === null));
  return { x, y, diverged, at };
}
