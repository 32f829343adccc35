/** What a promotion does, in the words of the dialog that asks before. */
import type { Job } from "../api/types";

export const USUAL = "production";

/** As the coordinator wants it: what begins with a letter is never taken for a number. */
export const LABEL = /^[a-z][a-z0-9._-]{0,39}$/;

export function promotionEffect(job: Job, label: string, version: number): string {
  if (label === "") return "A label is a name by which others ask for this model.";
  if (!LABEL.test(label)) return "A label begins with a small letter, then come letters, digits, dots, dashes.";
  const now = job.labels[label];
  if (now === version) return `Version ${version} is ${label} already.`;
  const instead = now === undefined ? "" : ` instead of version ${now}`;
  const past = now === undefined || named(job, now) > 1 ? "" : ` Version ${now} is then kept only as long as any other.`;
  return `Whoever asks for ${label} gets version ${version}${instead} from now on, and its model is kept.${past}`;
}

export function withdrawalEffect(job: Job, label: string): string {
  const version = job.labels[label];
  const kept = version !== undefined && named(job, version) > 1 ? "" : " The model is then kept only as long as any other.";
  return `Whoever asks for ${label} gets no model any longer.${kept}`;
}

/** How many labels a version has. */
const named = (job: Job, version: number): number =>
  Object.values(job.labels).filter((one) => one === version).length;
