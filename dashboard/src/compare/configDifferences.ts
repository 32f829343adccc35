/** What differs between the configurations of runs, and only that. */
import { flatten } from "../format/flatten";
import type { Run } from "./runs";

export interface Differences {
  /** Dotted names of settings that are not the same in all runs, in the order of the files. */
  names: string[];
  /** By run, the settings that it has. */
  values: ReadonlyMap<string, string>[];
}

/** Their own names and titles always differ, and say nothing. */
const OWN = new Set(["name", "title"]);

export function differences(runs: Run[]): Differences {
  const values = runs.map(({ job }) => new Map(flatten(job.spec).filter(([name]) => !OWN.has(name))));
  const names = [...new Set(values.flatMap((one) => [...one.keys()]))];
  const differ = (name: string) => values.some((one) => one.get(name) !== values[0]?.get(name));
  return { names: names.filter(differ), values };
}
