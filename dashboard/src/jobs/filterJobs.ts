/** The jobs that somebody looks for: with the tag, and with every word somewhere in what they are called. */
import type { Job } from "../api/types";

/** What is chosen beside words; empty: any. */
export interface Chosen {
  tag: string;
  state: string;
  algorithm: string;
}

export function matching(jobs: Job[], words: string, { tag, state, algorithm }: Chosen): Job[] {
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
