/** How a node stands in a job that its peers may carry on: as it says itself, or as others know it when it is silent. */
import type { JobNode, NodeState, Peer } from "../api/types";
import type { IconName } from "../ui/Icon";

export type Standing = NodeState | "suspect" | "away" | "handover" | "apart" | "lost";

/** A peer's word is told every 5 s; one that is older than this does not say how things are (ms). */
export const LATE = 15_000;

interface Look {
  word: string;
  icon: IconName;
  means: string;
}

export const LOOKS: Record<Standing, Look> = {
  training: { word: "Training", icon: "training", means: "at the server, training" },
  evaluating: { word: "Evaluating", icon: "evaluating", means: "at the server, evaluating" },
  idle: { word: "Idle", icon: "idle", means: "at the server, waiting" },
  stale: { word: "Stale", icon: "stale", means: "late at the server" },
  gone: { word: "Gone", icon: "gone", means: "not heard of" },
  suspect: { word: "Suspects", icon: "warning", means: "has not heard the server, asks the others" },
  away: { word: "With peers", icon: "mode", means: "carries on with its peers" },
  handover: { word: "Handing back", icon: "handover", means: "hands back what it has learned" },
  apart: { word: "Apart", icon: "apart", means: "carries on; only its peers hear it" },
  lost: { word: "Lost", icon: "gone", means: "neither the server nor a peer hears it" },
};

/** Whom nobody hears: drawn as a ghost. */
export const isGhost = (standing: Standing): boolean =>
  standing === "lost" || standing === "gone" || standing === "stale";

/** Who mixes its model with those of its peers. */
export const isOut = (standing: Standing): boolean =>
  standing === "away" || standing === "handover" || standing === "apart";

/** `now` is this browser's clock (ms); null once nobody listens any more, so that silence says nothing. */
export function standing(
  peer: Peer | undefined,
  node: JobNode | undefined,
  others: readonly Peer[],
  now: number | null,
): Standing {
  if (peer === undefined || peer.state === null || peer.state === "coordinated") return node?.state ?? "gone";
  if (isHeard(peer, now)) return peer.state;
  const vouched = others.some((other) => isHeard(other, now) && other.contacts.get(peer.name)?.state === "alive");
  return vouched ? "apart" : "lost";
}

/** Who is not heard (any more), as a text that changes exactly when they do. */
export const silent = (peers: readonly Peer[], now: number | null): string =>
  peers.map((peer) => (isHeard(peer, now) ? "" : peer.name)).join(" ");

const isHeard = ({ told_at }: Peer, now: number | null): boolean =>
  told_at !== null && (now === null || now - told_at <= LATE);
