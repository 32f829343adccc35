/** One event of the stream, read: what changed in which job. */
import { reviveJob, reviveMetrics, reviveNode, reviveVersion } from "../api/revive";
import type { Job, JobNode, Metrics, Note, RawJob, RawNode, RawVersion, Version } from "../api/types";

export type Delta =
  | { kind: "job"; job: string; value: Job }
  | { kind: "version"; job: string; version: Version }
  | { kind: "metrics"; job: string; number: number; metrics: Metrics }
  | { kind: "note"; job: string; note: Note }
  | { kind: "nodes"; job: string; nodes: JobNode[] }
  | { kind: "traffic"; job: string; up_bytes: number; down_bytes: number };

/** What the events carry: the API's nouns beside the name of their job. */
interface Payloads {
  job: RawJob & { job?: string };
  version: { job: string } & (RawVersion | { number: number; digest?: undefined });
  metrics: { job: string; number: number; metrics: Record<string, unknown> };
  note: Note & { job: string };
  nodes: { job: string; nodes: RawNode[] };
  traffic: { job: string; up_bytes: number; down_bytes: number };
}

export type DeltaEvent = keyof Payloads;
export const DELTA_EVENTS: DeltaEvent[] = ["job", "version", "metrics", "note", "nodes", "traffic"];

type Readers = { [E in DeltaEvent]: (payload: Payloads[E], now: number) => Delta | null };

const READERS: Readers = {
  job: ({ job: _, ...raw }, now) => ({ kind: "job", job: raw.name, value: reviveJob(raw, now) }),
  // A version that has meanwhile been cleared away comes as its bare number; there is nothing to show of it.
  version: ({ job, ...raw }) =>
    raw.digest === undefined ? null : { kind: "version", job, version: reviveVersion(raw as RawVersion) },
  metrics: ({ job, number, metrics }) => ({ kind: "metrics", job, number, metrics: reviveMetrics(metrics) }),
  note: ({ job, ...note }) => ({ kind: "note", job, note }),
  nodes: ({ job, nodes }, now) => ({ kind: "nodes", job, nodes: nodes.map((node) => reviveNode(node, now)) }),
  traffic: ({ job, up_bytes, down_bytes }) => ({ kind: "traffic", job, up_bytes, down_bytes }),
};

/** Reads one event's data; null if it says nothing. Throws SyntaxError on what is not JSON. */
export function readDelta<E extends DeltaEvent>(event: E, data: string, now: number): Delta | null {
  return READERS[event](JSON.parse(data) as Payloads[E], now);
}
