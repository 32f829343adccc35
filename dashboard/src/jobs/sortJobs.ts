import type { Job, JobState } from "../api/types";
import { pick } from "../format/metric";
import { byNumber } from "../format/text";

const ENDED: ReadonlySet<JobState> = new Set(["done", "stopped", "failed"]);

export const hasEnded = (job: Job): boolean => ENDED.has(job.state);

/** Those still under way first, then the most recent. */
export function inOrder(jobs: Job[]): Job[] {
  return jobs.toSorted((a, b) => Number(hasEnded(a)) - Number(hasEnded(b)) || lastAt(b).localeCompare(lastAt(a)));
}

export const SORTS = ["activity", "name", "state", "progress", "left", "best", "up", "down"] as const;
export type Sort = (typeof SORTS)[number];

/** What comes first when a column is chosen: the greatest figure, or the first letter. */
export const firstIs = (sort: Sort): "greatest" | "least" =>
  sort === "name" || sort === "state" || sort === "left" ? "least" : "greatest";

/** By one column; what has no figure comes last both ways, equals by activity. */
export function sortJobs(jobs: Job[], sort: Sort, turned: boolean, now: number): Job[] {
  const active = inOrder(jobs);
  if (sort === "activity") return turned ? active.reverse() : active;
  const sign = (firstIs(sort) === "least") === turned ? -1 : 1;
  return active
    .map((job) => ({ job, key: keyOf(job, sort, now) }))
    .sort((a, b) => {
      if (a.key === null || b.key === null) return Number(a.key === null) - Number(b.key === null);
      const order = typeof a.key === "number" ? a.key - (b.key as number) : byNumber(a.key, b.key as string);
      return sign * order;
    })
    .map(({ job }) => job);
}

const STATES: JobState[] = ["running", "evaluating", "waiting", "paused", "failed", "stopped", "done"];

function keyOf(job: Job, sort: Exclude<Sort, "activity">, now: number): number | string | null {
  switch (sort) {
    case "name":
      return job.title || job.name;
    case "state":
      return STATES.indexOf(job.state);
    case "progress":
      return job.progress;
    case "left":
      return secondsLeft(job, now);
    case "best":
      return job.best?.accuracy ?? lossAsWorth(job);
    case "up":
      return job.up_bytes;
    case "down":
      return job.down_bytes;
  }
}

/** Where no accuracy is measured, the least loss is the best; behind all that have one. */
function lossAsWorth({ metrics }: Job): number | null {
  const loss = pick("loss", metrics);
  return loss === undefined || !Number.isFinite(loss) ? null : -1 - Math.abs(loss);
}

const lastAt = (job: Job): string => job.ended_at ?? job.started_at ?? job.created_at;

/** Seconds until the expected end; null when unknown or over. */
export function secondsLeft(job: Job, now: number): number | null {
  if (job.eta_at === null || hasEnded(job) || job.state === "paused") return null;
  return Math.max(0, (job.eta_at - now) / 1000);
}

/** Seconds since the start; `serverNow` is the coordinator's clock in ms. */
export function elapsed(job: Job, serverNow: number): number | null {
  if (job.started_at === null) return null;
  const end = job.ended_at === null ? serverNow : Date.parse(job.ended_at);
  return Math.max(0, (end - Date.parse(job.started_at)) / 1000);
}

/** "2 running, 1 paused, 3 done": the states that occur, in the order of a job's life. */
export function countStates(jobs: Job[]): [JobState, number][] {
  return STATES.map((state): [JobState, number] => [state, jobs.filter((job) => job.state === state).length]).filter(
    ([, number]) => number > 0,
  );
}
