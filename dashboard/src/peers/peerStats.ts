/** Sums over a job's peers. */
import type { Peer, TrafficRow } from "../api/types";
import { formatBytes } from "../format/number";
import { formatDuration } from "../format/time";

export interface Refusal {
  code: string;
  count: number;
  /** Peers that refused messages, and how many, in descending order. */
  by: [peer: string, count: number][];
}

/** Sum up refused messages by code, the most frequent first. */
export function refusals(peers: readonly Peer[]): Refusal[] {
  const found = new Map<string, [string, number][]>();
  for (const { name, refused } of peers) {
    for (const [code, count] of refused) {
      if (count > 0) found.set(code, [...(found.get(code) ?? []), [name, count]]);
    }
  }
  return [...found]
    .map(([code, by]) => ({ code, count: total(by), by: by.sort(([, a], [, b]) => b - a) }))
    .sort((a, b) => b.count - a.count || a.code.localeCompare(b.code));
}

/** Return the peers in quarantine and the peers that have put them there, by name. */
export function quarantined(peers: readonly Peer[]): [name: string, by: string[]][] {
  const found = new Map<string, string[]>();
  for (const { name, quarantine } of peers) {
    for (const one of quarantine) found.set(one, [...(found.get(one) ?? []), name]);
  }
  return [...found].sort(([a], [b]) => a.localeCompare(b));
}

const total = (by: [string, number][]): number => by.reduce((sum, [, count]) => sum + count, 0);

export interface ExchangeTotals {
  exchanges: number;
  sent: number;
  received: number;
}

/** Sum up exchanges with all other peers since the process started. */
export function exchangeTotals({ links }: Peer): ExchangeTotals {
  return [...links.values()].reduce<ExchangeTotals>(
    (sum, { exchanges, sent, received }) => ({
      exchanges: sum.exchanges + exchanges,
      sent: sum.sent + sent,
      received: sum.received + received,
    }),
    { exchanges: 0, sent: 0, received: 0 },
  );
}

/** Describe the remaining bytes, or the time until the next exchange; null: no limit. */
export function describeBudget({ budget }: Peer): string | null {
  if (budget === null) return null;
  if (budget.wait_s > 0) return `limit reached, next exchange in ${formatDuration(budget.wait_s)}`;
  return `${formatBytes(Math.max(0, budget.left))} left of ${formatBytes(budget.bytes_per_hour)} per hour`;
}

/** Count the other peers that it reports as alive. */
export function countAlive({ links }: Peer): { alive: number; others: number } {
  const states = [...links.values()].map(({ state }) => state);
  return { alive: states.filter((state) => state === "alive").length, others: states.length };
}

/** Sum up the bytes between each node and the coordinator; rows of kind "gossip" are between peers. */
export function serverBytes(rows: readonly TrafficRow[]): Map<string, number> {
  const found = new Map<string, number>();
  for (const { node, kind, bytes } of rows) {
    if (node && kind !== "gossip") found.set(node, (found.get(node) ?? 0) + bytes);
  }
  return found;
}
