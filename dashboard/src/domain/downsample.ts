/** Downsampling of a run that keeps the minimum and maximum of each interval. */
import { metricNamesIn } from "./metrics";
import type { Version } from "../api/types";

/** Return a value of a version; undefined: not measured. */
export type Value = (version: Version) => number | undefined;

/** Return the values by which runs are ranked. */
export function rankingValues(versions: Version[]): Value[] {
  const names = [...metricNamesIn("accuracy", versions).slice(0, 1), ...metricNamesIn("loss", versions).slice(0, 1)];
  return names.map((name) => ({ metrics }) => metrics[name]);
}

/**
 * Return about `most` versions at most, with the first, the last `tail`, and those for which `keep` is true. The same
 * list is returned if it is short enough. Takes linear time.
 */
export function downsample(
  versions: Version[],
  most: number,
  values: Value[],
  keep: (version: Version) => boolean = () => false,
  tail = 1,
): Version[] {
  if (versions.length <= most) return versions;
  const end = Math.max(0, versions.length - tail);
  const stretches = Math.max(1, Math.floor((most - tail) / (2 * Math.max(1, values.length))));
  const kept = new Set<number>([0]);
  for (let stretch = 0; stretch < stretches; stretch++) {
    const from = Math.floor((end * stretch) / stretches);
    const to = Math.floor((end * (stretch + 1)) / stretches);
    if (values.length === 0 && from < to) kept.add(from);
    for (const value of values) for (const index of extremes(versions, from, to, value)) kept.add(index);
  }
  return versions.filter((version, index) => index >= end || kept.has(index) || keep(version));
}

/** Return the indices of the minimum, the maximum and the first value that is not finite. */
function extremes(versions: Version[], from: number, to: number, value: Value): number[] {
  let [low, high] = [Infinity, -Infinity];
  let [lowest, highest, odd] = [-1, -1, -1];
  for (let index = from; index < to; index++) {
    const one = value(versions[index] as Version);
    if (one === undefined) continue;
    if (!Number.isFinite(one)) {
      if (odd === -1) odd = index;
      continue;
    }
    if (one < low) [low, lowest] = [one, index];
    if (one > high) [high, highest] = [one, index];
  }
  return [lowest, highest, odd].filter((index) => index !== -1);
}
