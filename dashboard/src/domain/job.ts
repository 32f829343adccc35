/** Derived properties of a job. */
import type { Job, JobState } from "../api/types";
import { formatBytes, formatCount, plural } from "../format/number";

const ENDED: ReadonlySet<JobState> = new Set(["done", "stopped", "failed"]);

export const hasEnded = (job: Pick<Job, "state">): boolean => ENDED.has(job.state);

/** Return the size of a job's base model, and how many of its members hold it. */
export function baseModelNote({ bytes, nodes }: NonNullable<Job["base_model"]>, members: number): string {
  const size = bytes === null ? "not uploaded, so each node must hold it" : formatBytes(bytes);
  return members === 0 ? size : `${size} · held by ${formatCount(nodes)} of ${plural(members, "node")}`;
}

/** Return the seconds until the expected end; null if it is unknown or the job has ended. `now` in ms. */
export function secondsLeft(job: Job, now: number): number | null {
  if (job.eta_at === null || hasEnded(job) || job.state === "paused") return null;
  return Math.max(0, (job.eta_at - now) / 1000);
}

/** Return the seconds since the start; null before it. `serverNow` is the coordinator's clock in ms. */
export function elapsed(job: Job, serverNow: number): number | null {
  if (job.started_at === null) return null;
  const end = job.ended_at === null ? serverNow : Date.parse(job.ended_at);
  return Math.max(0, (end - Date.parse(job.started_at)) / 1000);
}
