/** The coordinator's answer to a comparison, decoded. Its figures are computed from all versions of each run. */
import { decodeJob, decodeNumber } from "../api/decode";
import type { Job, RawComparison } from "../api/types";
import type { MetricKind } from "../domain/metrics";

/** A version as a line shows it; long runs are downsampled. */
export interface RunPoint {
  number: number;
  elapsed_s: number;
  total_bytes: number;
  metrics: Readonly<Record<string, number>>;
}

export interface Run {
  job: Job;
  points: RunPoint[];
}

export interface Row {
  run: Run;
  /** The index of the run, on which its color depends. */
  place: number;
  last: number | undefined;
  best: number | undefined;
  /** Number of closed versions, without the initial model. */
  syncs: number;
  bytes: number;
  /** Bytes, divided by those of the baseline. */
  ratio: number | undefined;
  /** The first version that reaches the target. */
  reached: { version: number; elapsed_s: number; total_bytes: number } | undefined;
}

export interface Comparison {
  /** By kind, the metric that all runs have. */
  metrics: Partial<Record<MetricKind, string>>;
  /** The kind of metric by which runs are ranked; undefined: they have none in common. */
  rankedBy: MetricKind | undefined;
  target: number | undefined;
  baseline: string;
  rows: Row[];
}

export function decodeComparison(raw: RawComparison, now: number): Comparison {
  const { accuracy, loss } = raw.metrics;
  const max = Math.max(...raw.runs.map(({ job }) => job.up_bytes + job.down_bytes));
  const rows = raw.runs.map(({ job, line, last, best, syncs, reached }, place): Row => {
    const bytes = job.up_bytes + job.down_bytes;
    return {
      run: { job: decodeJob(job, now), points: decodePoints(line) },
      place,
      last: decodeNumber(last),
      best: best ?? undefined,
      syncs,
      bytes,
      ratio: max > 0 ? bytes / max : undefined,
      reached: reached ?? undefined,
    };
  });
  const rankedBy = raw.judged === null ? undefined : raw.judged === accuracy ? "accuracy" : "loss";
  const metrics = { ...(accuracy ? { accuracy } : {}), ...(loss ? { loss } : {}) };
  return { metrics, rankedBy, target: raw.target ?? undefined, baseline: raw.baseline, rows };
}

function decodePoints({ numbers, elapsed_s, total_bytes, values }: RawComparison["runs"][number]["line"]): RunPoint[] {
  const columns = Object.entries(values);
  return numbers.map((number, index) => {
    const metrics: Record<string, number> = {};
    for (const [name, column] of columns) {
      const value = decodeNumber(column[index]);
      if (value !== undefined) metrics[name] = value;
    }
    return { number, elapsed_s: elapsed_s[index] ?? 0, total_bytes: total_bytes[index] ?? 0, metrics };
  });
}

export const SORTS = ["given", "best", "last", "bytes", "reached"] as const;
export type Sort = (typeof SORTS)[number];

/** Return the rows in an order, the best or cheapest first; rows without a value come last. */
export function sortRows(rows: Row[], sort: Sort, kind: MetricKind | undefined): Row[] {
  const sign = kind === "loss" ? 1 : -1;
  const keyOf = (row: Row): number => {
    const value =
      sort === "bytes" ? row.bytes : sort === "reached" ? row.reached?.total_bytes : row[sort === "best" ? "best" : "last"];
    if (value === undefined || !Number.isFinite(value)) return Infinity;
    return sort === "best" || sort === "last" ? sign * value : value;
  };
  return sort === "given" ? rows : rows.toSorted((a, b) => keyOf(a) - keyOf(b) || a.place - b.place);
}
