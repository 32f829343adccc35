/** What a job counts: rounds, or versions where nobody asks and they come as they like. */
import type { Job } from "../api/types";

export const UNITS = ["round", "version"] as const;
export type Unit = (typeof UNITS)[number];

/** Whether models are synchronised only when they have drifted apart. */
export const isDynamic = (job: Pick<Job, "schedule">): boolean => job.schedule === "drift" || watchesVariance(job);

/** Whether the coordinator estimates the variance of all models, instead of each node checking its own distance. */
export const watchesVariance = (job: Pick<Job, "schedule">): boolean => job.schedule === "variance";

export const unitOf = (job: Pick<Job, "schedule" | "versions">): Unit =>
  isDynamic(job) || job.versions === null ? "version" : "round";

export const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);
