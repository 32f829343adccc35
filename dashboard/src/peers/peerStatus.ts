/** The status of a node in a job with gossip: as the node reports it, or as its peers see it if it does not report. */
import type { JobNode, NodeState, Peer } from "../api/types";
import type { IconName } from "../ui/Icon";

export type PeerStatus = NodeState | "suspect" | "gossip" | "returning" | "apart" | "lost";

/** Peers report every 5 s; an older report is not the current status (ms). */
export const REPORT_TIMEOUT_MS = 15_000;

interface StatusStyle {
  label: string;
  icon: IconName;
  meaning: string;
}

export const STATUS_STYLES: Record<PeerStatus, StatusStyle> = {
  training: { label: "Training", icon: "training", meaning: "server mode, training" },
  evaluating: { label: "Evaluating", icon: "evaluating", meaning: "server mode, evaluating" },
  idle: { label: "Idle", icon: "idle", meaning: "server mode, idle" },
  stale: { label: "Stale", icon: "stale", meaning: "no recent contact with the coordinator" },
  gone: { label: "Gone", icon: "gone", meaning: "no contact with the coordinator" },
  suspect: { label: "Suspects coordinator", icon: "warning", meaning: "no answer from the coordinator, asks its peers" },
  gossip: { label: "Gossip", icon: "mode", meaning: "gossip mode" },
  returning: { label: "Returning", icon: "handover", meaning: "returning its model to the coordinator" },
  apart: { label: "Gossip only", icon: "apart", meaning: "gossip mode, reachable only by its peers" },
  lost: { label: "Unreachable", icon: "gone", meaning: "no contact with the coordinator or any peer" },
};

export const isUnreachable = (status: PeerStatus): boolean => status === "lost" || status === "gone" || status === "stale";

/** Return whether the node mixes its model with those of its peers. */
export const isGossiping = (status: PeerStatus): boolean => status === "gossip" || status === "returning" || status === "apart";

/** `now` is this browser's clock (ms); null once the job has ended, when reports are no longer expected. */
export function peerStatus(
  peer: Peer | undefined,
  node: JobNode | undefined,
  others: readonly Peer[],
  now: number | null,
): PeerStatus {
  if (peer === undefined || peer.state === null || peer.state === "coordinated") return node?.state ?? "gone";
  if (isReporting(peer, now)) return peer.state;
  const isAlive = others.some((other) => isReporting(other, now) && other.links.get(peer.name)?.state === "alive");
  return isAlive ? "apart" : "lost";
}

/** Return the names of the peers that do not report, as a text that changes exactly when they do. */
export const silentPeers = (peers: readonly Peer[], now: number | null): string =>
  peers.map((peer) => (isReporting(peer, now) ? "" : peer.name)).join(" ");

const isReporting = ({ reported_at }: Peer, now: number | null): boolean =>
  reported_at !== null && (now === null || now - reported_at <= REPORT_TIMEOUT_MS);
