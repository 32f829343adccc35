/** The curve of a network with exits: metrics such as eval/accuracy@0.3 and eval/answered_device@0.3 of one version. */
import type { Version } from "../api/types";

export interface ExitCurve {
  version: number;
  thresholds: number[];
  accuracy: number[];
  /** The levels that report a fraction, and "cloud", which answers the rest. */
  levels: { name: string; fractions: number[] }[];
}

const ACCURACY = /^eval\/accuracy@([\d.]+)$/;

export const hasExitCurve = (version: Version): boolean => version.metrics["eval/accuracy@0.0"] !== undefined;

/** Return the curve of the newest version that has one. */
export function newestExitCurve(versions: Version[]): ExitCurve | undefined {
  const version = versions.findLast(hasExitCurve);
  if (version === undefined) return undefined;
  const steps = Object.keys(version.metrics).flatMap((name) => ACCURACY.exec(name)?.[1] ?? []).sort((a, b) => Number(a) - Number(b));
  const values = (metric: string) => steps.map((step) => version.metrics[`eval/${metric}@${step}`] ?? NaN);
  const levels = ["device", "edge"]
    .filter((name) => version.metrics[`eval/answered_${name}@0.0`] !== undefined)
    .map((name) => ({ name, fractions: values(`answered_${name}`) }));
  const rest = steps.map((_, index) => 1 - levels.reduce((sum, { fractions }) => sum + (fractions[index] ?? 0), 0));
  return {
    version: version.number,
    thresholds: steps.map(Number),
    accuracy: values("accuracy"),
    levels: [...levels, { name: "cloud", fractions: rest }],
  };
}
