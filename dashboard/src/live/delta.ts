/** One event of the stream, read: what changed in which job. */
import { reviveJob, reviveMetrics, reviveNode, revivePeerNews, reviveVersion } from "../api/revive";
import type { Alert, EventData, Failure, Job, JobNode, Metrics, Note, PeerNews, PeersPoint, Provisional, StreamEvent, Version } from "../api/types";

export type Delta =
  | { kind: "job"; job: string; value: Job }
  | { kind: "version"; job: string; version: Version }
  | { kind: "metrics"; job: string; number: number; metrics: Metrics; provisional: Provisional | null }
  | { kind: "note"; job: string; note: Note }
  | { kind: "failure"; job: string; failure: Failure }
  | { kind: "alert"; job: string; alert: Alert }
  | { kind: "logs"; job: string; last: number }
  | { kind: "nodes"; job: string; nodes: JobNode[] }
  | { kind: "peers"; job: string; roster: number; peers: PeerNews[]; now: PeersPoint | null }
  | { kind: "traffic"; job: string; up_bytes: number; down_bytes: number };

/** The events that change what is known of a job. */
export type DeltaEvent = Exclude<StreamEvent["event"], "hello" | "ping">;

type Readers = { [E in DeltaEvent]: (data: EventData<E>, now: number) => Delta };

const READERS: Readers = {
  job: ({ job, ...raw }, now) => ({ kind: "job", job, value: reviveJob(raw, now) }),
  version: ({ job, ...raw }) => ({ kind: "version", job, version: reviveVersion(raw) }),
  metrics: ({ job, number, metrics, provisional = null }) => ({
    kind: "metrics",
    job,
    number,
    metrics: reviveMetrics(metrics),
    provisional,
  }),
  note: ({ job, ...note }) => ({ kind: "note", job, note }),
  failure: (failure) => ({ kind: "failure", job: failure.job, failure }),
  alert: (alert) => ({ kind: "alert", job: alert.job, alert }),
  logs: ({ job, last }) => ({ kind: "logs", job, last }),
  nodes: ({ job, nodes }, now) => ({ kind: "nodes", job, nodes: nodes.map((node) => reviveNode(node, now)) }),
  peers: ({ job, roster, peers, now: point }, now) => ({
    kind: "peers",
    job,
    roster,
    peers: peers.map((peer) => revivePeerNews(peer, now)),
    now: point,
  }),
  traffic: ({ job, up_bytes, down_bytes }) => ({ kind: "traffic", job, up_bytes, down_bytes }),
};

export const DELTA_EVENTS = Object.keys(READERS) as DeltaEvent[];

/** Reads one event's data. Throws SyntaxError on what is not JSON. */
export function readDelta<E extends DeltaEvent>(event: E, data: string, now: number): Delta {
  return READERS[event](JSON.parse(data) as EventData<E>, now);
}
