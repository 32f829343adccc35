import type { Job, JobState } from "../api/types";

const ENDED: ReadonlySet<JobState> = new Set(["done", "stopped", "failed"]);

export const hasEnded = (job: Job): boolean => ENDED.has(job.state);

/** Those still under way first, then the most recent. */
export function inOrder(jobs: Job[]): Job[] {
  return jobs.toSorted((a, b) => Number(hasEnded(a)) - Number(hasEnded(b)) || lastAt(b).localeCompare(lastAt(a)));
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
  const order: JobState[] = ["running", "evaluating", "waiting", "paused", "failed", "stopped", "done"];
  return order
    .map((state): [JobState, number] => [state, jobs.filter((job) => job.state === state).length])
    .filter(([, number]) => number > 0);
}
