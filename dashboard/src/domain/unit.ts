/** The unit in which a job counts: rounds, or versions if it has no rounds. */
import type { Job } from "../api/types";

export const UNITS = ["round", "version"] as const;
export type Unit = (typeof UNITS)[number];

/** Return whether the job uses dynamic averaging: models are synchronized only when they have diverged. */
export const isDynamic = (job: Pick<Job, "schedule">): boolean => job.schedule === "divergence" || usesVariance(job);

/** Return whether the coordinator estimates the variance of the models, instead of each node checking its distance. */
export const usesVariance = (job: Pick<Job, "schedule">): boolean => job.schedule === "variance";

export const unitOf = (job: Pick<Job, "schedule" | "versions">): Unit =>
  isDynamic(job) || job.versions === null ? "version" : "round";
