/** Which nodes are shown, and in which order. */
import type { FleetNode } from "../api/types";
import { byNumber } from "../format/text";

export const STATES = ["all", "training", "online", "stale", "gone"] as const;
export type Shown = (typeof STATES)[number];
export const SORTS = ["name", "state", "seen", "jobs", "reports", "up", "down", "failures"] as const;
export type Sort = (typeof SORTS)[number];

/** A number by which the greatest comes first. */
function weight(node: FleetNode, sort: Sort): number {
  switch (sort) {
    case "name":
      return 0;
    case "state":
      return -STATES.indexOf(node.state);
    case "seen":
      return -(node.last_seen_s ?? Infinity);
    case "jobs":
      return node.jobs.length;
    case "reports":
      return node.reports;
    case "up":
      return node.up_bytes;
    case "down":
      return node.down_bytes;
    case "failures":
      return node.failures;
  }
}

/** Nodes in that state whose name, job or release has the text in it. */
export function chosen(nodes: FleetNode[], text: string, state: Shown, sort: Sort): FleetNode[] {
  const wanted = text.trim().toLowerCase();
  const fits = (node: FleetNode) =>
    (state === "all" || node.state === state) &&
    (wanted === "" || [node.name, ...node.jobs, ...told(node)].some((word) => word.toLowerCase().includes(wanted)));
  return nodes
    .filter(fits)
    .map((node) => ({ node, weight: weight(node, sort) }))
    .sort((a, b) => (a.weight === b.weight ? byNumber(a.node.name, b.node.name) : b.weight > a.weight ? 1 : -1))
    .map(({ node }) => node);
}

/** What a node says of itself, in short: its tags, its release, its device. It may say anything. */
export function told({ info }: Pick<FleetNode, "info">): string[] {
  const { tags, shoal, device, torch } = info;
  const words = Array.isArray(tags) ? tags.filter((tag): tag is string => typeof tag === "string") : [];
  const plain = (value: unknown): value is string | number => typeof value === "string" || typeof value === "number";
  return [
    ...words,
    ...(plain(shoal) ? [`shoal ${shoal}`] : []),
    ...(plain(device) ? [String(device)] : []),
    ...(plain(torch) ? [`torch ${torch}`] : []),
  ];
}

export function counts(nodes: FleetNode[]): Record<Shown, number> {
  const found: Record<Shown, number> = { all: nodes.length, training: 0, online: 0, stale: 0, gone: 0 };
  for (const { state } of nodes) found[state] += 1;
  return found;
}
