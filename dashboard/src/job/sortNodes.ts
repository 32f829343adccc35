/** The orders of the nodes table. */
import type { JobNode, NodeState } from "../api/types";
import { pick } from "../format/metric";
import { plural } from "../format/number";
import { byNumber } from "../format/text";

export const SORTS = [
  "name",
  "state",
  "reports",
  "loss",
  "accuracy",
  "seconds",
  "gap",
  "up",
  "down",
  "seen",
  "failures",
] as const;
export type Sort = (typeof SORTS)[number];

const STATES: NodeState[] = ["training", "evaluating", "idle", "stale", "gone"];

/** A number by which the largest comes first. What is not known comes last; what diverged comes first. */
function weight(node: JobNode, sort: Sort): number {
  switch (sort) {
    case "reports":
      return node.reports;
    case "loss":
    case "accuracy":
      return metricWeight(pick(sort, node.metrics));
    case "gap":
      return metricWeight(node.metrics["train/gap"]);
    case "seconds":
      return node.seconds ?? -Infinity;
    case "up":
      return node.up_bytes;
    case "down":
      return node.down_bytes;
    case "seen":
      return -(node.seen_at ?? 0);
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

export function sortNodes(nodes: JobNode[], sort: Sort): JobNode[] {
  return nodes
    .map((node) => ({ node, weight: weight(node, sort) }))
    .sort((a, b) => (a.weight === b.weight ? byNumber(a.node.name, b.node.name) : b.weight - a.weight))
    .map(({ node }) => node);
}

/** "7 nodes · 4 training · 1 stale": those that take part, and how many others have joined. */
export function countNodes(nodes: JobNode[]): string {
  const part = nodes.filter(({ left_out }) => left_out === "");
  const counts = STATES.map((state): [string, number] => [state, part.filter((node) => node.state === state).length]);
  const said = counts.filter(([, number]) => number > 0).map(([state, number]) => `${number} ${state}`);
  const out = nodes.length - part.length;
  return [plural(part.length, "node"), ...said, ...(out > 0 ? [`${out} left out`] : [])].join(" · ");
}

/**
 * Whole seconds since a node was last heard, null if it was not. The coordinator says anew how long a node that is
 * there has been silent only when that changes; a node that is not there grows more silent by the second.
 */
export function silence({ state, last_seen_s, seen_at }: JobNode, now: number): number | null {
  if (last_seen_s === null || seen_at === null) return null;
  const seconds = state === "stale" || state === "gone" ? (now - seen_at) / 1000 : last_seen_s;
  return Math.max(0, Math.round(seconds));
}
