/** Sums over a job's peers: what they have refused, what they have sent each other and the coordinator. */
import type { Peer, TrafficRow } from "../api/types";
import { bytes } from "../format/number";
import { duration } from "../format/time";

export interface Refusal {
  code: string;
  count: number;
  /** Who refused, the most first. */
  by: [peer: string, count: number][];
}

/** By code, the most first. */
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

/** Whom peers begin nothing with any more, and which peers: by name. */
export function quarantined(peers: readonly Peer[]): [name: string, by: string[]][] {
  const found = new Map<string, string[]>();
  for (const { name, quarantine } of peers) {
    for (const one of quarantine) found.set(one, [...(found.get(one) ?? []), name]);
  }
  return [...found].sort(([a], [b]) => a.localeCompare(b));
}

const total = (by: [string, number][]): number => by.reduce((sum, [, count]) => sum + count, 0);

export interface Traded {
  exchanges: number;
  sent: number;
  received: number;
}

/** With all others, since its process began. */
export function traded({ contacts }: Peer): Traded {
  return [...contacts.values()].reduce<Traded>(
    (sum, { exchanges, sent, received }) => ({
      exchanges: sum.exchanges + exchanges,
      sent: sum.sent + sent,
      received: sum.received + received,
    }),
    { exchanges: 0, sent: 0, received: 0 },
  );
}

/** How many bytes it may still send and receive among peers, or when it may exchange again; null: any number. */
export function allowance({ budget }: Peer): string | null {
  if (budget === null) return null;
  if (budget.wait_s > 0) return `bytes used up, again in ${duration(budget.wait_s)}`;
  return `${bytes(Math.max(0, budget.left))} left of ${bytes(budget.bytes_per_hour)} per hour`;
}

/** How many others it says are alive, and how many are not. */
export function sight({ contacts }: Peer): { alive: number; others: number } {
  const states = [...contacts.values()].map(({ state }) => state);
  return { alive: states.filter((state) => state === "alive").length, others: states.length };
}

/** Bytes that went between each node and the coordinator; the ledger has what nodes send each other beside them. */
export function withServer(rows: readonly TrafficRow[]): Map<string, number> {
  const found = new Map<string, number>();
  for (const { node, kind, bytes } of rows) {
    if (node && kind !== "gossip") found.set(node, (found.get(node) ?? 0) + bytes);
  }
  return found;
}
