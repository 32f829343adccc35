/** Whom a job does not ask, by its own file: as `Selection.excludes` says it (shoal/core/selection.py). */
import type { Job, JobNode } from "../api/types";

/** Why a node takes no part in the job, whatever the time; "": it does. */
export function barred({ spec }: Pick<Job, "spec">, { name, info }: Pick<JobNode, "name" | "info">): string {
  const { nodes, tags } = (spec.selection ?? {}) as { nodes?: string[]; tags?: string[] };
  if (nodes !== undefined && nodes.length > 0 && !nodes.includes(name)) return "not named by the job";
  const own: unknown = info["tags"];
  const missing = tags?.find((tag) => !(Array.isArray(own) && own.includes(tag)));
  return missing === undefined ? "" : `without the tag ${missing}`;
}
