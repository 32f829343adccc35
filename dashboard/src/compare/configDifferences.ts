/** The differences between the configurations of runs. */
import { flatten } from "../format/flatten";
import type { Run } from "./comparison";

export interface ConfigDifferences {
  /** Dotted names of the settings that differ, in the order of the files. */
  names: string[];
  /** The settings of each run. */
  values: ReadonlyMap<string, string>[];
}

/** Names and titles always differ. */
const IGNORED = new Set(["name", "title"]);

export function configDifferences(runs: Run[]): ConfigDifferences {
  const values = runs.map(({ job }) => new Map(flatten(job.spec).filter(([name]) => !IGNORED.has(name))));
  const names = [...new Set(values.flatMap((one) => [...one.keys()]))];
  const differ = (name: string) => values.some((one) => one.get(name) !== values[0]?.get(name));
  return { names: names.filter(differ), values };
}
