/** Exponential moving average with bias correction, as in Adam. */
import type { Point } from "./series";

/** The weight of the previous mean at each point. */
export const SMOOTHING_WEIGHTS = { none: 0, light: 0.6, medium: 0.85, heavy: 0.96 } as const;
export type Smoothing = keyof typeof SMOOTHING_WEIGHTS;
export const SMOOTHINGS = ["none", "light", "medium", "heavy"] as const;

/** Return the smoothed line. Missing and diverged points stay as they are. */
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
