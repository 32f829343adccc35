/**
 * The events of the stream. A new event is one row of `EVENTS`: how its data is decoded and how soon it is shown. If it
 * changes a cached answer, the answer's merge function (`merge.ts`) handles it.
 */
import { decodeJob, decodeMetrics, decodeNode, decodePeerUpdate, decodeVersion } from "../api/decode";
import type { EventData, StreamEvent } from "../api/types";
import type { Priority } from "./batcher";

/** Names of the events that change cached answers. */
export type EventType = Exclude<StreamEvent["event"], "hello" | "ping">;

interface Row<E extends EventType> {
  /** `now` is this browser's clock (ms). */
  decode: (data: EventData<E>, now: number) => unknown;
  priority: Priority;
}

const EVENTS = {
  job: { decode: ({ job: _, ...raw }, now) => decodeJob(raw, now), priority: "normal" },
  version: { decode: ({ job: _, ...raw }) => decodeVersion(raw), priority: "version" },
  metrics: {
    decode: ({ number, metrics, provisional = null }) => ({ number, metrics: decodeMetrics(metrics), provisional }),
    priority: "chart",
  },
  job_event: { decode: ({ job: _, ...event }) => event, priority: "normal" },
  failure: { decode: (failure) => failure, priority: "normal" },
  alert: { decode: (alert) => alert, priority: "normal" },
  logs: { decode: ({ last }) => last, priority: "normal" },
  nodes: { decode: ({ nodes }, now) => nodes.map((node) => decodeNode(node, now)), priority: "normal" },
  peers: {
    decode: ({ roster, peers, now: point }, now) => ({
      roster,
      peers: peers.map((peer) => decodePeerUpdate(peer, now)),
      now: point,
    }),
    priority: "chart",
  },
  traffic: { decode: ({ up_bytes, down_bytes }) => ({ up_bytes, down_bytes }), priority: "normal" },
} satisfies { [E in EventType]: Row<E> };

export const EVENT_TYPES = Object.keys(EVENTS) as EventType[];

/** A decoded event of type `E` with its data `T`. */
interface Event<E extends EventType, T> {
  type: E;
  /** The job's name; empty for an alert about no job. */
  job: string;
  data: T;
}

export type LiveEvent<E extends EventType = EventType> = {
  [K in E]: Event<K, ReturnType<(typeof EVENTS)[K]["decode"]>>;
}[E];

/** Decode the data of one event. Throws SyntaxError if it is not JSON. */
export function decodeEvent(type: EventType, json: string, now: number): LiveEvent {
  const raw = JSON.parse(json) as { job: string };
  const decode = EVENTS[type].decode as (data: unknown, now: number) => unknown;
  return { type, job: raw.job, data: decode(raw, now) } as LiveEvent;
}

export const priorityOf = ({ type }: LiveEvent): Priority => EVENTS[type].priority;
