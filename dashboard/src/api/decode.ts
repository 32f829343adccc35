/**
 * From JSON to the types of `types.ts`: the strings "NaN", "Infinity" and "-Infinity" become numbers again (JSON has
 * none of them), and durations that were true when they were sent become moments of this browser's clock.
 */
import type {
  Contact,
  Job,
  JobNode,
  JobPeers,
  Metrics,
  Peer,
  PeerNews,
  RawJob,
  RawNode,
  RawPeer,
  RawPeerNews,
  RawPeers,
  RawVersion,
  Version,
} from "./types";

/** A number as the API writes it, or undefined for what is none. */
export function reviveNumber(value: unknown): number | undefined {
  if (typeof value === "number") return value;
  if (value === "NaN") return NaN;
  if (value === "Infinity") return Infinity;
  if (value === "-Infinity") return -Infinity;
  return undefined;
}

export function reviveMetrics(raw: Record<string, unknown> | undefined): Metrics {
  const metrics: Record<string, number> = {};
  for (const [name, value] of Object.entries(raw ?? {})) {
    const number = reviveNumber(value);
    if (number !== undefined) metrics[name] = number;
  }
  return metrics;
}

export function reviveJob({ eta_s, ...raw }: RawJob, now: number): Job {
  const { mode = "server", mode_since = null, tags = [], labels = {}, measured = null, provisional = null } = raw;
  const { headline = "", members = raw.nodes, idle = false } = raw;
  const eta_at = eta_s === null ? null : now + eta_s * 1000;
  const known = { mode, mode_since, tags, labels, measured, provisional, headline, members, idle, eta_at };
  return { ...raw, ...known, metrics: reviveMetrics(raw.metrics) };
}

export function reviveVersion(raw: RawVersion): Version {
  const { provisional = null } = raw;
  return { ...raw, provisional, metrics: reviveMetrics(raw.metrics), numbers: reviveMetrics(raw.numbers) };
}

export function reviveNode(raw: RawNode, now: number): JobNode {
  const silent = raw.last_seen_s;
  const losses = (raw.losses ?? []).map((loss) => reviveNumber(loss) ?? NaN);
  const seen_at = silent === null ? null : now - silent * 1000;
  const { left_out = "", deadlines = 0, deadlines_missed = 0 } = raw;
  return { ...raw, metrics: reviveMetrics(raw.metrics), losses, seen_at, left_out, deadlines, deadlines_missed };
}

export function revivePeer(raw: RawPeer, now: number): Peer {
  const { name, inbound, state = null, told_s = null, term = null, round = null, weight = null, coverage = null } = raw;
  return {
    name,
    inbound,
    state,
    state_since: raw.changes?.at(-1)?.at ?? null,
    told_at: told_s === null ? null : now - told_s * 1000,
    term,
    round,
    weight,
    metrics: reviveMetrics(raw.metrics),
    seen: new Map(Object.entries(raw.seen ?? {})),
    coverage,
    contacts: new Map(Object.entries(raw.peers ?? {}).map(([other, edge]) => [other, contact(edge)])),
    refused: new Map(Object.entries(raw.refused ?? {})),
    quarantine: raw.quarantine ?? [],
    budget: raw.budget ? { ...raw.budget, wait_s: raw.budget.wait_s ?? 0 } : null,
  };
}

const contact = (raw: NonNullable<RawPeer["peers"]>[string]): Contact => ({
  state: raw.state,
  exchanges: raw.exchanges ?? 0,
  sent: raw.sent ?? 0,
  received: raw.received ?? 0,
  rtt_ms: raw.rtt_ms ?? null,
  carried: raw.carried ?? 0,
});

export const revivePeerNews = (raw: RawPeerNews, now: number): PeerNews => ({
  ...revivePeer(raw, now),
  partial: raw.partial ?? false,
});

export const revivePeers = (raw: RawPeers, now: number): JobPeers => ({
  ...raw,
  peers: raw.peers.map((peer) => revivePeer(peer, now)),
});
