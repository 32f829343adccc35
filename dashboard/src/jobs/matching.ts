/** The jobs that somebody looks for: with the tag, and with every word somewhere in what they are called. */
import type { Job } from "../api/types";

export function matching(jobs: Job[], words: string, tag: string): Job[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return jobs.filter(
    (job) => (tag === "" || job.tags.includes(tag)) && wanted.every((word) => textOf(job).includes(word)),
  );
}

const textOf = ({ name, title, algorithm, schedule, state, tags }: Job): string =>
  [name, title, algorithm, schedule, state, ...tags].join("\n").toLowerCase();
