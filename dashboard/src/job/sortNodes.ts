/** Orders and summary of a job's nodes. */
import type { JobNode, NodeState } from "../api/types";
import { pickMetric } from "../domain/metrics";
import { plural } from "../format/number";
import { naturalOrder } from "../format/text";

export const SORTS = [
  "name",
  "state",
  "reports",
  "loss",
  "accuracy",
  "seconds",
  "divergence",
  "up",
  "down",
  "seen",
  "failures",
] as const;
export type Sort = (typeof SORTS)[number];

const STATES: NodeState[] = ["training", "evaluating", "idle", "stale", "gone"];

/** Return a number by which the largest comes first. Unknown values come last, diverged ones first. */
function sortWeight(node: JobNode, sort: Sort): number {
  switch (sort) {
    case "reports":
      return node.reports;
    case "loss":
    case "accuracy":
      return metricWeight(pickMetric(sort, node.metrics));
    case "divergence":
      return metricWeight(node.metrics["train/divergence"]);
    case "seconds":
      return node.seconds ?? -Infinity;
    case "up":
      return node.up_bytes;
    case "down":
      return node.down_bytes;
    case "seen":
      return -(node.last_seen_at ?? 0);
    case "failures":
      return node.failures;
    case "state":
      return -STATES.indexOf(node.state);
    case "name":
      return 0;
  }
}

function metricWeight(value: number | undefined): number {
  if (value === undefined) return -Infinity;
  return Number.isFinite(value) ? value : Infinity;
}

/** Sort nodes; excluded ones come last in every order. */
export function sortNodes(nodes: JobNode[], sort: Sort): JobNode[] {
  return nodes
    .map((node) => ({ node, weight: sortWeight(node, sort) }))
    .sort(
      (a, b) =>
        Number(a.node.excluded_text !== "") - Number(b.node.excluded_text !== "") ||
        (a.weight === b.weight ? naturalOrder(a.node.name, b.node.name) : b.weight - a.weight),
    )
    .map(({ node }) => node);
}

/** Return the numbers of participating nodes by state, and of excluded ones: "7 nodes · 4 training · 1 stale". */
export function summarizeNodes(nodes: JobNode[]): string {
  const included = nodes.filter(({ excluded_text }) => excluded_text === "");
  const counts = STATES.map((state): [string, number] => [state, included.filter((node) => node.state === state).length]);
  const states = counts.filter(([, number]) => number > 0).map(([state, number]) => `${number} ${state}`);
  const excluded = nodes.length - included.length;
  return [plural(included.length, "node"), ...states, ...(excluded > 0 ? [`${excluded} excluded`] : [])].join(" · ");
}

/**
 * Return the whole seconds since a node was last seen; null if it was not. For a connected node the coordinator sends the
 * value when it changes; for one that is stale or gone it grows with the clock.
 */
export function secondsSilent({ state, last_seen_s, last_seen_at }: JobNode, now: number): number | null {
  if (last_seen_s === null || last_seen_at === null) return null;
  const seconds = state === "stale" || state === "gone" ? (now - last_seen_at) / 1000 : last_seen_s;
  return Math.max(0, Math.round(seconds));
}
