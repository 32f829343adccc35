/** Filter of the jobs table. */
import type { Job } from "../api/types";

/** The selected values; empty: any. */
export interface JobFilter {
  tag: string;
  state: string;
  algorithm: string;
}

export function filterJobs(jobs: Job[], words: string, { tag, state, algorithm }: JobFilter): Job[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return jobs.filter(
    (job) =>
      (tag === "" || job.tags.includes(tag)) &&
      (state === "" || job.state === state) &&
      (algorithm === "" || job.algorithm === algorithm) &&
      wanted.every((word) => textOf(job).includes(word)),
  );
}

const textOf = ({ name, title, algorithm, schedule, state, tags }: Job): string =>
  [name, title, algorithm, schedule, state, ...tags].join("\n").toLowerCase();
