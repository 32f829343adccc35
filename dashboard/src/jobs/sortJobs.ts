/** Orders of the jobs table. */
import type { Job, JobState } from "../api/types";
import { hasEnded, secondsLeft } from "../domain/job";
import { pickMetric } from "../domain/metrics";
import { naturalOrder } from "../format/text";

/** Return active jobs first, then the most recent. */
export function byActivity(jobs: Job[]): Job[] {
  return jobs.toSorted((a, b) => Number(hasEnded(a)) - Number(hasEnded(b)) || lastAt(b).localeCompare(lastAt(a)));
}

export const SORTS = ["activity", "name", "state", "progress", "left", "best", "up", "down"] as const;
export type Sort = (typeof SORTS)[number];

/** Return whether the first click on a heading puts the greatest value first. */
export const isDescendingFirst = (sort: Sort): boolean => sort !== "name" && sort !== "state" && sort !== "left";

/** Return the jobs sorted by one column; unknown values come last in both directions, equal ones by activity. */
export function sortJobs(jobs: Job[], sort: Sort, reversed: boolean, now: number): Job[] {
  const active = byActivity(jobs);
  if (sort === "activity") return reversed ? active.reverse() : active;
  const sign = isDescendingFirst(sort) === reversed ? 1 : -1;
  return active
    .map((job) => ({ job, key: keyOf(job, sort, now) }))
    .sort((a, b) => {
      if (a.key === null || b.key === null) return Number(a.key === null) - Number(b.key === null);
      const order = typeof a.key === "number" ? a.key - (b.key as number) : naturalOrder(a.key, b.key as string);
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
      return job.best?.accuracy ?? lossKey(job);
    case "up":
      return job.up_bytes;
    case "down":
      return job.down_bytes;
  }
}

/** Jobs without accuracy are sorted by their loss, after all others. */
function lossKey({ metrics }: Job): number | null {
  const loss = pickMetric("loss", metrics);
  return loss === undefined || !Number.isFinite(loss) ? null : -1 - Math.abs(loss);
}

const lastAt = (job: Job): string => job.ended_at ?? job.started_at ?? job.created_at;

/** Return the numbers of jobs by state, for the states that occur. */
export function countStates(jobs: Job[]): [JobState, number][] {
  return STATES.map((state): [JobState, number] => [state, jobs.filter((job) => job.state === state).length]).filter(
    ([, number]) => number > 0,
  );
}
