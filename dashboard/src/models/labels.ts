/** The effects of label changes, as the confirmation dialog describes them. */
import type { Job } from "../api/types";

export const DEFAULT_LABEL = "production";

/** Valid labels; they start with a letter, so that they are not mistaken for versions. */
export const LABEL_PATTERN = /^[a-z][a-z0-9._-]{0,39}$/;

export function promotionEffect(job: Job, label: string, version: number): string {
  if (label === "") return "A label is a name for this model version.";
  if (!LABEL_PATTERN.test(label)) return "Start with a lower-case letter; use lower-case letters, digits, dots and dashes.";
  const now = job.labels[label];
  if (now === version) return `Version ${version} has the label ${label} already.`;
  const instead = now === undefined ? "" : ` instead of ${now}`;
  const past = now === undefined || labelCount(job, now) > 1 ? "" : ` Version ${now} is no longer protected from deletion.`;
  return `${label} refers to version ${version}${instead}, and its model is kept.${past}`;
}

export function removalEffect(job: Job, label: string): string {
  const version = job.labels[label];
  const kept = version !== undefined && labelCount(job, version) > 1 ? "" : " The model is no longer protected from deletion.";
  return `${label} no longer refers to a model.${kept}`;
}

/** Return the number of labels of a version. */
const labelCount = (job: Job, version: number): number =>
  Object.values(job.labels).filter((one) => one === version).length;
