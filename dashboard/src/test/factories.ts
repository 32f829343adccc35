/** Factories of API objects for tests. */
import type { PeerLink, Job, JobNode, Metrics, JobEvent, Peer, PeerUpdate, PeersPoint, Version } from "../api/types";
import type { EventType, LiveEvent } from "../live/events";

export const version = (number: number, metrics: Metrics = {}, rest: Partial<Version> = {}): Version => ({
  number,
  digest: "",
  bytes: 40_000,
  why: "all reports are in",
  opened_at: "2026-11-21T08:00:00Z",
  closed_at: "2026-11-21T08:00:02Z",
  weight: 400,
  elapsed_s: number * 2,
  seconds: 2,
  reports: 4,
  asked: 4,
  metrics,
  provisional: null,
  numbers: {},
  up_bytes: number === 0 ? 0 : 100,
  down_bytes: number === 0 ? 0 : 120,
  total_bytes: number * 220,
  ...rest,
});

export const job = (rest: Partial<Job> = {}): Job => ({
  name: "digits",
  title: "Digits",
  state: "running",
  state_why: "",
  idle: false,
  algorithm: "FedAvg",
  schedule: "rounds",
  mode: "server",
  mode_since: null,
  model: null,
  version: 3,
  versions: 10,
  progress: 0.3,
  eta_at: null,
  nodes: 4,
  busy: 2,
  created_at: "2026-11-21T08:00:00Z",
  started_at: "2026-11-21T08:00:10Z",
  ended_at: null,
  metrics: {},
  metrics_version: null,
  provisional: null,
  headline: "",
  members: 4,
  best: null,
  up_bytes: 1000,
  down_bytes: 2000,
  spec: {},
  tags: [],
  labels: {},
  ...rest,
});

export const node = (name: string, rest: Partial<JobNode> = {}): JobNode => ({
  name,
  state: "idle",
  progress: null,
  task: null,
  weight: null,
  version: null,
  reports: 0,
  seconds: null,
  metrics: {},
  losses: [],
  excluded_text: "",
  deadlines: 0,
  deadlines_missed: 0,
  is_gossiping: false,
  resting: false,
  up_bytes: 0,
  down_bytes: 0,
  last_seen_s: 0,
  last_seen_at: 0,
  failures: 0,
  last_error: null,
  info: {},
  ...rest,
});

export const jobEvent = (id: number, rest: Partial<JobEvent> = {}): JobEvent => ({
  id,
  at: "2026-11-21T08:00:00Z",
  version: 1,
  kind: "decision",
  node: null,
  text: "ask 4",
  ...rest,
});

export const peer = (name: string, rest: Partial<Peer> = {}): Peer => ({
  name,
  is_reachable: true,
  state: "gossip",
  state_since: "2026-11-21T08:00:00Z",
  reported_at: 0,
  term: 2,
  local_rounds: 10,
  weight: 400,
  metrics: {},
  rounds_by_peer: new Map(),
  coverage: null,
  links: new Map(),
  refused: new Map(),
  quarantine: [],
  budget: null,
  ...rest,
});

export const peerUpdate = (name: string, rest: Partial<Peer> = {}): PeerUpdate => ({ ...peer(name, rest), partial: false });

export const link = (rest: Partial<PeerLink> = {}): PeerLink => ({
  state: "alive",
  exchanges: 3,
  sent: 1000,
  received: 900,
  rtt_ms: 3,
  carried: 0,
  ...rest,
});

export const point = (second: number, rest: Partial<PeersPoint> = {}): PeersPoint => ({
  at: new Date(Date.UTC(2026, 10, 21, 8, 0, second)).toISOString(),
  peers: 4,
  consensus: 0.02,
  residual: 1e-8,
  coverage: 0.9,
  rounds: 10,
  accuracy: 0.8,
  loss: 0.5,
  ...rest,
});

export const event = <E extends EventType>(type: E, data: LiveEvent<E>["data"], job = "digits") =>
  ({ type, job, data }) as unknown as LiveEvent<E>;
