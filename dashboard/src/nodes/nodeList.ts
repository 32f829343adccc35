/** Filter and orders of the nodes table. */
import type { FleetNode } from "../api/types";
import { naturalOrder } from "../format/text";

export const STATES = ["all", "training", "online", "stale", "gone"] as const;
export type StateFilter = (typeof STATES)[number];
export const SORTS = ["name", "state", "seen", "jobs", "reports", "up", "down", "failures"] as const;
export type Sort = (typeof SORTS)[number];

/** Return a number by which the greatest comes first. */
function sortWeight(node: FleetNode, sort: Sort): number {
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

/** Return the nodes in a state whose name, jobs or tags contain the text, sorted. */
export function filterNodes(nodes: FleetNode[], text: string, state: StateFilter, sort: Sort): FleetNode[] {
  const wanted = text.trim().toLowerCase();
  const fits = (node: FleetNode) =>
    (state === "all" || node.state === state) &&
    (wanted === "" || [node.name, ...node.jobs, ...nodeTags(node)].some((word) => word.toLowerCase().includes(wanted)));
  return nodes
    .filter(fits)
    .map((node) => ({ node, weight: sortWeight(node, sort) }))
    .sort((a, b) => (a.weight === b.weight ? naturalOrder(a.node.name, b.node.name) : b.weight > a.weight ? 1 : -1))
    .map(({ node }) => node);
}

/** Return a node's tags, release, device and PyTorch version. Nodes may send any values. */
export function nodeTags({ info }: Pick<FleetNode, "info">): string[] {
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

export function countStates(nodes: FleetNode[]): Record<StateFilter, number> {
  const found: Record<StateFilter, number> = { all: nodes.length, training: 0, online: 0, stale: 0, gone: 0 };
  for (const { state } of nodes) found[state] += 1;
  return found;
}
