/** What each node of a run sent and got, in all and until a version was there. */
import type { TrafficRow } from "../api/types";

export interface NodePrice {
  /** Empty for what no node had a part in. */
  node: string;
  up: number;
  down: number;
  /** Until the version asked for; undefined if none was. */
  price: { up: number; down: number } | undefined;
}

/** By name. Bytes of a round are booked under the version that it began with, those outside any round under -1. */
export function nodePrices(rows: TrafficRow[], reached: number | undefined): NodePrice[] {
  const names = [...new Set(rows.map((row) => row.node ?? ""))].sort();
  return names.map((node) => {
    const own = rows.filter((row) => (row.node ?? "") === node);
    const before = own.filter((row) => reached !== undefined && (row.version ?? -1) < reached);
    return { node, ...sums(own), price: reached === undefined ? undefined : sums(before) };
  });
}

function sums(rows: TrafficRow[]): { up: number; down: number } {
  const sum = (way: TrafficRow["direction"]) =>
    rows.reduce((total, row) => total + (row.direction === way ? row.bytes : 0), 0);
  return { up: sum("up"), down: sum("down") };
}
