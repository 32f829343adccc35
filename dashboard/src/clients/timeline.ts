/** Layout of a round's timeline. Positions are shares of the width. */
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
  task: string;
  segments: Segment[];
  /** Seconds since the round opened; null: no report yet. */
  end: number | null;
  staleness: number;
}

export interface Timeline {
  bars: Bar[];
  /** Seconds at the left edge (negative if work started before the round) and at the right edge. */
  from: number;
  to: number;
  quorum: number | null;
  /** null: there is none, or it is far to the right. */
  deadline: number | null;
}

/** A deadline beyond this multiple of the duration is not shown, because it would compress the bars. */
const FAR = 2;
/** Tasks are assigned within this time of the opening of the round (s). */
const INSTANT = 0.001;

export function layOutRound(round: Round): Timeline {
  const starts = round.clients.map((client) => client.start_s ?? 0);
  const earliest = Math.min(0, ...starts);
  const from = earliest < -INSTANT ? earliest : 0;
  const ends = round.clients.map((client) => client.end_s ?? 0);
  const last = Math.max(round.seconds, ...ends, 1e-6);
  const near = round.deadline_s !== null && round.deadline_s <= FAR * last;
  const to = near ? Math.max(last, round.deadline_s as number) : last;
  const share = (seconds: number) => (seconds - from) / (to - from);
  return {
    bars: round.clients.map((client) => layOutClient(client, share)),
    from,
    to,
    quorum: round.quorum_s === null ? null : share(round.quorum_s),
    deadline: near ? share(round.deadline_s as number) : null,
  };
}

function layOutClient({ node, task, phases, start_s, end_s, staleness }: ClientInRound, share: (seconds: number) => number): Bar {
  const known = PHASES.map((phase) => ({ phase, seconds: phases[SECONDS[phase]] ?? 0 }));
  // If the coordinator has restarted, only the end is known.
  let at = start_s ?? (end_s ?? 0) - known.reduce((total, { seconds }) => total + seconds, 0);
  const segments = known.map(({ phase, seconds }) => {
    const from = share(at);
    at += seconds;
    return { phase, seconds, from, width: share(at) - from };
  });
  return { node, task, segments: segments.filter(({ seconds }) => seconds > 0), end: end_s, staleness };
}
