/**
 * Decoders of JSON. The strings "NaN", "Infinity" and "-Infinity" become numbers, because JSON has none of them.
 * Durations become times of this browser's clock.
 */
import type {
  PeerLink,
  Job,
  JobNode,
  JobPeers,
  Metrics,
  Peer,
  PeerUpdate,
  RawJob,
  RawNode,
  RawPeer,
  RawPeerUpdate,
  RawPeers,
  RawVersion,
  Version,
} from "./types";

/** Return a number; undefined if the value is not one. */
export function decodeNumber(value: unknown): number | undefined {
  if (typeof value === "number") return value;
  if (value === "NaN") return NaN;
  if (value === "Infinity") return Infinity;
  if (value === "-Infinity") return -Infinity;
  return undefined;
}

export function decodeMetrics(raw: Record<string, unknown> | undefined): Metrics {
  const metrics: Record<string, number> = {};
  for (const [name, value] of Object.entries(raw ?? {})) {
    const number = decodeNumber(value);
    if (number !== undefined) metrics[name] = number;
  }
  return metrics;
}

export function decodeJob({ eta_s, ...raw }: RawJob, now: number): Job {
  const { mode = "server", mode_since = null, tags = [], labels = {}, metrics_version = null, provisional = null } = raw;
  const { headline = "", members = raw.nodes, idle = false } = raw;
  const eta_at = eta_s === null ? null : now + eta_s * 1000;
  const known = { mode, mode_since, tags, labels, metrics_version, provisional, headline, members, idle, eta_at };
  return { ...raw, ...known, metrics: decodeMetrics(raw.metrics) };
}

export function decodeVersion(raw: RawVersion): Version {
  const { provisional = null } = raw;
  return { ...raw, provisional, metrics: decodeMetrics(raw.metrics), numbers: decodeMetrics(raw.numbers) };
}

export function decodeNode(raw: RawNode, now: number): JobNode {
  const silent = raw.last_seen_s;
  const losses = (raw.losses ?? []).map((loss) => decodeNumber(loss) ?? NaN);
  const last_seen_at = silent === null ? null : now - silent * 1000;
  const { excluded_text = "", deadlines = 0, deadlines_missed = 0 } = raw;
  return { ...raw, metrics: decodeMetrics(raw.metrics), losses, last_seen_at, excluded_text, deadlines, deadlines_missed };
}

export function decodePeer(raw: RawPeer, now: number): Peer {
  const { name, is_reachable, state = null, told_s = null, term = null, local_rounds = null, weight = null, coverage = null } = raw;
  return {
    name,
    is_reachable,
    state,
    state_since: raw.changes?.at(-1)?.at ?? null,
    reported_at: told_s === null ? null : now - told_s * 1000,
    term,
    local_rounds,
    weight,
    metrics: decodeMetrics(raw.metrics),
    rounds_by_peer: new Map(Object.entries(raw.rounds_by_peer ?? {})),
    coverage,
    links: new Map(Object.entries(raw.peers ?? {}).map(([other, edge]) => [other, decodeLink(edge)])),
    refused: new Map(Object.entries(raw.refused ?? {})),
    quarantine: raw.quarantine ?? [],
    budget: raw.budget ? { ...raw.budget, wait_s: raw.budget.wait_s ?? 0 } : null,
  };
}

const decodeLink = (raw: NonNullable<RawPeer["peers"]>[string]): PeerLink => ({
  state: raw.state,
  exchanges: raw.exchanges ?? 0,
  sent: raw.sent ?? 0,
  received: raw.received ?? 0,
  rtt_ms: raw.rtt_ms ?? null,
  carried: raw.carried ?? 0,
});

export const decodePeerUpdate = (raw: RawPeerUpdate, now: number): PeerUpdate => ({
  ...decodePeer(raw, now),
  partial: raw.partial ?? false,
});

export const decodePeers = (raw: RawPeers, now: number): JobPeers => ({
  ...raw,
  peers: raw.peers.map((peer) => decodePeer(peer, now)),
});
