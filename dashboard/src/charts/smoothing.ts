/** Smoothed lines: an exponential mean that knows how little it has seen at the start (as Adam's moments do). */
import type { Point } from "./series";

/** How much of the mean each point keeps of what came before it. */
export const SMOOTHING = { none: 0, light: 0.6, medium: 0.85, heavy: 0.96 } as const;
export type Smoothing = keyof typeof SMOOTHING;
export const SMOOTHINGS = ["none", "light", "medium", "heavy"] as const;

/** The same length; what was not measured stays so, and so does what diverged, which no mean takes up. */
export function smooth(line: Point[], keep: number): Point[] {
  let mean = 0;
  let seen = 0;
  return line.map((value) => {
    if (value === undefined || value === null) return value;
    mean = keep * mean + (1 - keep) * value;
    seen = keep * seen + (1 - keep);
    return mean / seen;
  });
}
