/** Fewer points of a long run, such that its line looks the same: each stretch keeps its least and its greatest value. */
import { namesIn } from "../format/metric";
import type { Version } from "../api/types";

/** What is drawn of a version; undefined: nothing was measured. What is not finite is drawn as a mark. */
export type Value = (version: Version) => number | undefined;

/** The values by which a run is judged. */
export function judged(versions: Version[]): Value[] {
  const names = [...namesIn("accuracy", versions).slice(0, 1), ...namesIn("loss", versions).slice(0, 1)];
  return names.map((name) => ({ metrics }) => metrics[name]);
}

/**
 * At most about `most` versions, with the first, the newest `tail`, and those that `keep` names. The very same list where
 * there are no more. Takes time in proportion to the list.
 */
export function thin(
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

/** Where the least, the greatest and the first value that is not finite stand, as far as there are any. */
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
