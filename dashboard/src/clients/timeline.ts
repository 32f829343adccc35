/** A round on one scale: where each client's phases begin and end, in shares of the width. */
import type { ClientInRound, Phases, Round } from "../api/types";

export const PHASES = ["wait", "download", "train", "upload", "fold"] as const;
export type Phase = (typeof PHASES)[number];

const SECONDS: Record<Phase, keyof Phases> = {
  wait: "wait_s",
  download: "download_s",
  train: "train_s",
  upload: "upload_s",
  fold: "fold_s",
};

export interface Segment {
  phase: Phase;
  seconds: number;
  from: number;
  width: number;
}

export interface Bar {
  node: string;
  order: string;
  segments: Segment[];
  /** Seconds since the round was opened; null: it has not reported. */
  end: number | null;
  staleness: number;
}

export interface Timeline {
  bars: Bar[];
  /** Seconds at the left edge (below nought where work began before the round) and at the right one. */
  from: number;
  to: number;
  quorum: number | null;
  /** null: none, or far to the right of all that has happened. */
  deadline: number | null;
}

/** A deadline that lies further out than this would press all bars together. */
const FAR = 2;
/** Seconds; an order is given in the instant in which its round is opened. */
const INSTANT = 0.001;

export function timeline(round: Round): Timeline {
  const starts = round.clients.map((client) => client.start_s ?? 0);
  const earliest = Math.min(0, ...starts);
  const from = earliest < -INSTANT ? earliest : 0;
  const ends = round.clients.map((client) => client.end_s ?? 0);
  const last = Math.max(round.seconds, ...ends, 1e-6);
  const near = round.deadline_s !== null && round.deadline_s <= FAR * last;
  const to = near ? Math.max(last, round.deadline_s as number) : last;
  const share = (seconds: number) => (seconds - from) / (to - from);
  return {
    bars: round.clients.map((client) => bar(client, share)),
    from,
    to,
    quorum: round.quorum_s === null ? null : share(round.quorum_s),
    deadline: near ? share(round.deadline_s as number) : null,
  };
}

function bar({ node, order, phases, start_s, end_s, staleness }: ClientInRound, share: (seconds: number) => number): Bar {
  const known = PHASES.map((phase) => ({ phase, seconds: phases[SECONDS[phase]] ?? 0 }));
  // Of a client that a restart parted from its past only the end is known.
  let at = start_s ?? (end_s ?? 0) - known.reduce((total, { seconds }) => total + seconds, 0);
  const segments = known.map(({ phase, seconds }) => {
    const from = share(at);
    at += seconds;
    return { phase, seconds, from, width: share(at) - from };
  });
  return { node, order, segments: segments.filter(({ seconds }) => seconds > 0), end: end_s, staleness };
}
