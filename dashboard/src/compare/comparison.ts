/** The answer to a comparison, as the page works with it. Its figures are the coordinator's, of all versions. */
import { reviveJob, reviveNumber } from "../api/revive";
import type { RawComparison, Job } from "../api/types";
import type { What } from "../format/metric";

/** What a line is drawn from; a run of a thousand versions has fewer of them here. */
export interface Stop {
  number: number;
  elapsed_s: number;
  total_bytes: number;
  metrics: Readonly<Record<string, number>>;
}

export interface Run {
  job: Job;
  versions: Stop[];
}

export interface Row {
  run: Run;
  last: number | undefined;
  best: number | undefined;
  /** Closed versions, without the initial model. */
  syncs: number;
  bytes: number;
  /** Bytes, divided by those of the baseline. */
  ratio: number | undefined;
  /** The first version that reaches the target. */
  reached: { version: number; elapsed_s: number; total_bytes: number } | undefined;
}

export interface Comparison {
  /** The metric of each kind that all runs have. */
  metrics: Partial<Record<What, string>>;
  /** Which of them is judged; undefined: they have none in common. */
  judged: What | undefined;
  target: number | undefined;
  baseline: string;
  rows: Row[];
}

export function comparisonOf(raw: RawComparison, now: number): Comparison {
  const { accuracy, loss } = raw.metrics;
  const runs = raw.runs.map(({ job }) => job);
  const most = Math.max(...runs.map((job) => job.up_bytes + job.down_bytes));
  const rows = raw.runs.map(({ job, line, last, best, syncs, reached }): Row => {
    const bytes = job.up_bytes + job.down_bytes;
    return {
      run: { job: reviveJob(job, now), versions: stopsOf(line) },
      last: reviveNumber(last),
      best: best ?? undefined,
      syncs,
      bytes,
      ratio: most > 0 ? bytes / most : undefined,
      reached: reached ?? undefined,
    };
  });
  const judged = raw.judged === null ? undefined : raw.judged === accuracy ? "accuracy" : "loss";
  const metrics = { ...(accuracy ? { accuracy } : {}), ...(loss ? { loss } : {}) };
  return { metrics, judged, target: raw.target ?? undefined, baseline: raw.baseline, rows };
}

function stopsOf({ numbers, elapsed_s, total_bytes, values }: RawComparison["runs"][number]["line"]): Stop[] {
  const columns = Object.entries(values);
  return numbers.map((number, place) => {
    const metrics: Record<string, number> = {};
    for (const [name, column] of columns) {
      const value = reviveNumber(column[place]);
      if (value !== undefined) metrics[name] = value;
    }
    return { number, elapsed_s: elapsed_s[place] ?? 0, total_bytes: total_bytes[place] ?? 0, metrics };
  });
}

export const SORTS = ["given", "best", "last", "bytes", "reached"] as const;
export type Sort = (typeof SORTS)[number];

/** Rows with their place among the runs, which their colour tells; what has no figure comes last. */
export function sorted(rows: Row[], sort: Sort, what: What | undefined): [row: Row, place: number][] {
  const sign = what === "loss" ? 1 : -1;
  const worth = (row: Row): number => {
    const value =
      sort === "bytes" ? row.bytes : sort === "reached" ? row.reached?.total_bytes : row[sort === "best" ? "best" : "last"];
    if (value === undefined || !Number.isFinite(value)) return Infinity;
    return sort === "best" || sort === "last" ? sign * value : value;
  };
  const placed = rows.map((row, place): [Row, number] => [row, place]);
  return sort === "given" ? placed : placed.sort(([a, i], [b, j]) => worth(a) - worth(b) || i - j);
}
