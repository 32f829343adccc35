/** Sums over a job's peers: what they have refused, and what they have sent each other. */
import type { Peer } from "../api/types";

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

/** How many others it says are alive, and how many are not. */
export function sight({ contacts }: Peer): { alive: number; others: number } {
  const states = [...contacts.values()].map(({ state }) => state);
  return { alive: states.filter((state) => state === "alive").length, others: states.length };
}
