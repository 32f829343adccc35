/** Return the nodes that have joined, or joined again, since `before`. */
import type { FleetNode } from "../api/types";

export function newNodes(before: FleetNode[], now: FleetNode[]): FleetNode[] {
  const known = new Map(before.map(({ name, joined_at }) => [name, joined_at]));
  return now.filter(({ name, joined_at }) => known.get(name) !== joined_at);
}
