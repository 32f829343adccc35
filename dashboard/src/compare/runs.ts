/** What a byte bought: the figures of the Compare page. The command `shoal compare` reckons the same way. */
import type { Job, Version } from "../api/types";
import { namesIn, type What } from "../format/metric";

export interface Run {
  job: Job;
  versions: Version[];
}

export interface Row {
  run: Run;
  final: number | undefined;
  best: number | undefined;
  /** Closed versions, without the initial model. */
  syncs: number;
  bytes: number;
  /** Bytes, divided by those of the baseline. */
  ratio: number | undefined;
  /** The first version that reaches the target. */
  reached: Version | undefined;
}

export interface Comparison {
  target: number | undefined;
  baseline: string | undefined;
  rows: Row[];
}

/** Of the worst run's best value: the target, where the address names none. */
const SHARE = 0.98;

/** The metric of a kind that all runs have, held-out data first; undefined if there is none. */
export function commonMetric(what: What, runs: Run[]): string | undefined {
  const [first, ...rest] = runs.map((run) => namesIn(what, run.versions));
  const common = (first ?? []).filter((name) => rest.every((names) => names.includes(name)));
  return common.find((name) => name.startsWith("held_out/")) ?? common[0];
}

export function compareRuns(runs: Run[], what: What, metric: string, wanted?: number): Comparison {
  const sign = what === "loss" ? -1 : 1;
  const bests = runs.map((run) => bestOf(run, metric, sign));
  const known = bests.filter((best) => best !== undefined);
  const usual = what === "loss" ? Math.max(...known) / SHARE : Math.min(...known) * SHARE;
  const target = wanted ?? (known.length > 0 ? usual : undefined);
  const dearest = runs.reduce<Run | undefined>((most, run) => (most && spent(most) >= spent(run) ? most : run), undefined);
  const rows = runs.map((run, index) => ({
    run,
    final: run.versions.findLast((version) => version.metrics[metric] !== undefined)?.metrics[metric],
    best: bests[index],
    syncs: run.versions.at(-1)?.number ?? 0,
    bytes: spent(run),
    ratio: dearest && spent(dearest) > 0 ? spent(run) / spent(dearest) : undefined,
    reached: target === undefined ? undefined : run.versions.find((version) => meets(version.metrics[metric], target, sign)),
  }));
  return { target, baseline: dearest?.job.name, rows };
}

const spent = (run: Run): number => run.job.up_bytes + run.job.down_bytes;

function bestOf(run: Run, metric: string, sign: number): number | undefined {
  const values = run.versions.map((version) => version.metrics[metric]).filter((value) => Number.isFinite(value));
  return values.length === 0 ? undefined : sign * Math.max(...values.map((value) => sign * (value as number)));
}

const meets = (value: number | undefined, target: number, sign: number): boolean =>
  value !== undefined && Number.isFinite(value) && sign * value >= sign * target;
