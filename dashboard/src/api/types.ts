/** Types of the API, from the coordinator's OpenAPI document (`schema.d.ts`), after `decode.ts`. */
import type { components } from "./schema";

type Schemas = components["schemas"];

/** Not decoded yet. */
export type RawJob = Schemas["JobView"];
export type RawVersion = Schemas["VersionView"];
export type RawNode = Schemas["JobNode"];
export type FleetNode = Schemas["NodeView"];
export type NodeListPage = Schemas["NodeList"];
export type JobListPage = Schemas["JobList"];
export type NodeDetail = Schemas["NodeDetail"];
export type SystemHistory = Schemas["SystemHistory"];
export type JobEvent = Schemas["JobEventView"];
export type Failure = Schemas["FailureView"];
export type Alert = Schemas["AlertView"];
export type Leader = Schemas["LeaderView"];
export type LogLine = Schemas["LogLine"];
export type RawPeer = Schemas["PeerView"];
export type RawPeerUpdate = Schemas["PeerUpdateView"];
export type RawPeers = Schemas["JobPeers"];
export type SwitchPreview = Schemas["SwitchPreview"];
export type FieldError = Schemas["FieldError"];
export type TrafficRow = Schemas["TrafficRow"];
export type PeersPoint = Schemas["ConsensusPoint"];

/** Events of the stream, and their data. */
export type StreamEvent = Schemas["StreamEvent"];
export type EventData<E extends StreamEvent["event"]> = Extract<StreamEvent, { event: E }>["data"];

export type JobState = RawJob["state"];
export type NodeState = RawNode["state"];
export type PeerState = NonNullable<RawPeer["state"]>;
export type LinkState = Schemas["PeerLinkView"]["state"];
export type Mode = NonNullable<RawJob["mode"]>;
export type JobEventKind = JobEvent["kind"];
export type TokenInfo = Schemas["TokenInfo"];
export type Role = Schemas["SessionView"]["role"];

/** The number of nodes on which a provisional metric is based. */
export type ProvisionalAccuracy = Schemas["ProvisionalAccuracy"];

/** Metrics by name, such as "eval/accuracy". NaN and infinite values mean that the run diverged. */
export type Metrics = Readonly<Record<string, number>>;

export interface Job
  extends Omit<
    RawJob,
    "metrics" | "eta_s" | "mode" | "mode_since" | "tags" | "labels" | "idle" | "metrics_version" | "provisional" | "headline" | "members"
  > {
  mode: Mode;
  /** True if no node works for the job until the event in `state_why`. */
  idle: boolean;
  /** Time of the last change of the mode; null: it has never changed. */
  mode_since: string | null;
  metrics: Metrics;
  /** The version of the metrics; null: there are none. */
  metrics_version: number | null;
  provisional: ProvisionalAccuracy | null;
  /** The job's situation in one sentence. */
  headline: string;
  /** Number of nodes that have joined; `nodes` counts those that participate. */
  members: number;
  tags: string[];
  /** Promoted versions, by label. */
  labels: Readonly<Record<string, number>>;
  /** Expected end, in milliseconds of this browser's clock. */
  eta_at: number | null;
}

export interface Version extends Omit<RawVersion, "metrics" | "numbers" | "provisional"> {
  metrics: Metrics;
  /** null: all nodes that were asked have evaluated the version. */
  provisional: ProvisionalAccuracy | null;
  /** Numbers of the schedule, such as "delta". */
  numbers: Metrics;
}

export type RawSplitJob = Schemas["SplitJobView"];
export type RawSplitJobDetail = Schemas["SplitJobDetail"];
export type SplitNode = Schemas["SplitNodeView"];

export interface SplitVersion extends Omit<Schemas["SplitVersionView"], "metrics"> {
  metrics: Metrics;
}

export interface SplitJob extends Omit<RawSplitJob, "metrics"> {
  metrics: Metrics;
}

export interface SplitJobDetail extends SplitJob {
  /** Closed rounds, oldest first. */
  versions: SplitVersion[];
}

export interface JobNode extends Omit<RawNode, "metrics" | "losses" | "excluded_text" | "deadlines" | "deadlines_missed"> {
  metrics: Metrics;
  /** The reason why the node is excluded; empty: it participates. */
  excluded_text: string;
  /** Deadlines of the last rounds (at most ten), and those that the node missed. */
  deadlines: number;
  deadlines_missed: number;
  /** Losses of the last reports, oldest first. */
  losses: number[];
  /** Time of the last contact, in milliseconds of this browser's clock; null: none since the coordinator started. */
  last_seen_at: number | null;
}

/** A peer's view of another peer, and their exchanges since its process started. */
export type PeerLink = Required<Schemas["PeerLinkView"]>;

/**
 * A node in gossip mode, as it reports itself. Unknown values are null or empty. Node names are keys of maps, because
 * an object would have a value for a node called "constructor".
 */
export interface Peer {
  name: string;
  /** True if other peers can connect to it. */
  is_reachable: boolean;
  state: PeerState | null;
  /** Time of the last change of the state; null: it has not reported yet. */
  state_since: string | null;
  /** Time of the report, in milliseconds of this browser's clock. */
  reported_at: number | null;
  term: number | null;
  /** Local rounds that it has made since the failover. */
  local_rounds: number | null;
  weight: number | null;
  /** Metrics of the last local round. */
  metrics: Metrics;
  /** By peer, the number of its local rounds that the model contains. */
  rounds_by_peer: ReadonlyMap<string, number>;
  /** The share of all local rounds that the model contains. */
  coverage: number | null;
  links: ReadonlyMap<string, PeerLink>;
  refused: ReadonlyMap<string, number>;
  /** Peers with which it starts no exchange, because of their messages. */
  quarantine: readonly string[];
  /** Limit on the bytes exchanged with peers; null: none. */
  budget: Required<Schemas["ByteBudgetView"]> | null;
}

/** An update of a peer. If it is partial, `rounds_by_peer` and `links` contain only changed entries. */
export interface PeerUpdate extends Peer {
  partial: boolean;
}

export interface JobPeers {
  /** Version of the signed roster; null: there is none. */
  roster: number | null;
  peers: Peer[];
  now: PeersPoint | null;
  /** Oldest first. */
  history: PeersPoint[];
}

export interface ModelRow extends Omit<Schemas["ModelRow"], "metrics"> {
  metrics: Metrics;
}

export type RawComparison = Schemas["RunComparison"];
export type RawHeat = Schemas["Heatmap"];
export type RawBands = Schemas["Quantiles"];
export type Round = Schemas["RoundTimeline"];
export type ClientInRound = Schemas["NodeInRound"];
export type Phases = Schemas["ReportPhases"];
export type ReportRow = Schemas["ReportRow"];
export type NodeInfluence = Schemas["NodeInfluence"];
