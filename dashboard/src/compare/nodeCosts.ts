/** The bytes of each node of a run. */
import type { TrafficRow } from "../api/types";

export interface NodeCost {
  /** Empty for traffic without a node. */
  node: string;
  up: number;
  down: number;
  /** Bytes until the target was reached; undefined if it was not. */
  untilTarget: { up: number; down: number } | undefined;
}

/** Sum up bytes by node. Bytes of a round are recorded under the version before it, other bytes under -1. */
export function nodeCosts(rows: TrafficRow[], reached: number | undefined): NodeCost[] {
  const names = [...new Set(rows.map((row) => row.node ?? ""))].sort();
  return names.map((node) => {
    const own = rows.filter((row) => (row.node ?? "") === node);
    const before = own.filter((row) => reached !== undefined && (row.version ?? -1) < reached);
    return { node, ...sums(own), untilTarget: reached === undefined ? undefined : sums(before) };
  });
}

function sums(rows: TrafficRow[]): { up: number; down: number } {
  const sum = (way: TrafficRow["direction"]) =>
    rows.reduce((total, row) => total + (row.direction === way ? row.bytes : 0), 0);
  return { up: sum("up"), down: sum("down") };
}
