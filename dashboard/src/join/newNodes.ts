/** Who has come since a moment: nodes that were not there then, or that have joined anew. */
import type { FleetNode } from "../api/types";

export function arrived(before: FleetNode[], now: FleetNode[]): FleetNode[] {
  const known = new Map(before.map(({ name, joined_at }) => [name, joined_at]));
  return now.filter(({ name, joined_at }) => known.get(name) !== joined_at);
}
