/**
 * What the pages work with: the API's nouns, as `schema.d.ts` has them from the coordinator's OpenAPI document, after
 * `revive.ts` has made their numbers and times usable.
 */
import type { components } from "./schema";

type Schemas = components["schemas"];

/** As they come, before `revive.ts`. */
export type RawJob = Schemas["Job"];
export type RawVersion = Schemas["Version"];
export type RawNode = Schemas["JobNode"];
export type FleetNode = Schemas["Node"];
export type FleetPage = Schemas["Nodes"];
export type JobPage = Schemas["Jobs"];
export type NodeDetail = Schemas["NodeDetail"];
export type SystemHistory = Schemas["SystemHistory"];
export type Note = Schemas["Note"];
export type Failure = Schemas["Failure"];
export type Alert = Schemas["Alert"];
export type Owner = Schemas["Owner"];
export type LogLine = Schemas["LogLine"];
export type RawPeer = Schemas["PeerRow"];
export type RawPeerNews = Schemas["PeerNews"];
export type RawPeers = Schemas["JobPeers"];
export type Move = Schemas["Move"];
export type Mistake = Schemas["Mistake"];
export type Checked = Schemas["Checked"];
export type TrafficRow = Schemas["TrafficRow"];
export type PeersPoint = Schemas["PeersPoint"];

/** An event of the stream: its name, and what its data is once it was parsed. */
export type StreamEvent = Schemas["StreamEvent"];
export type EventData<E extends StreamEvent["event"]> = Extract<StreamEvent, { event: E }>["data"];

export type JobState = RawJob["state"];
export type NodeState = RawNode["state"];
export type PeerState = NonNullable<RawPeer["state"]>;
export type Liveness = Schemas["Edge"]["state"];
export type Mode = NonNullable<RawJob["mode"]>;
export type NoteKind = Note["kind"];
export type TokenRow = Schemas["TokenRow"];
export type Role = Schemas["Session"]["role"];

/** An accuracy that does not rest on all nodes that were asked yet. */
export type Provisional = Schemas["Provisional"];

/** Metrics by name, such as "eval/accuracy". A value may be NaN or infinite: the run diverged there. */
export type Metrics = Readonly<Record<string, number>>;

export interface Job
  extends Omit<
    RawJob,
    "metrics" | "eta_s" | "mode" | "mode_since" | "tags" | "labels" | "idle" | "measured" | "provisional" | "headline" | "members"
  > {
  mode: Mode;
  /** No node works for it, and none will before what `state_why` says has come. */
  idle: boolean;
  /** When that changed last; null: never yet. */
  mode_since: string | null;
  metrics: Metrics;
  /** The version that these are about; null: none has any. */
  measured: number | null;
  provisional: Provisional | null;
  /** What a reader wants to know first, in a sentence. */
  headline: string;
  /** Nodes that have joined; `nodes` are those that take part. */
  members: number;
  tags: string[];
  /** Promoted versions, by label. */
  labels: Readonly<Record<string, number>>;
  /** When the job is expected to end, in milliseconds of this browser's clock. */
  eta_at: number | null;
}

export interface Version extends Omit<RawVersion, "metrics" | "numbers" | "provisional"> {
  metrics: Metrics;
  /** null: no node that was asked is still to measure it. */
  provisional: Provisional | null;
  /** What the schedule keeps from here on, such as "delta". */
  numbers: Metrics;
}

export interface JobNode extends Omit<RawNode, "metrics" | "losses" | "left_out" | "deadlines" | "deadlines_missed"> {
  metrics: Metrics;
  /** Why it takes no part; empty: it does. */
  left_out: string;
  /** Of the last rounds that had asked it, at most ten. */
  deadlines: number;
  deadlines_missed: number;
  /** Of its last reports, oldest first. */
  losses: number[];
  /** When it was last heard, in milliseconds of this browser's clock; null if never since the coordinator started. */
  seen_at: number | null;
}

/** How a peer sees another, and what they have exchanged since its process began. */
export type Contact = Required<Schemas["Edge"]>;

/**
 * A node as its job's other nodes know it. What it has not told yet is null or empty. Names of nodes are looked up in
 * maps: an object would answer for a node called "constructor", too.
 */
export interface Peer {
  name: string;
  /** Whether others can call it. */
  inbound: boolean;
  state: PeerState | null;
  /** When that changed last, as the coordinator heard of it; null: it has told nothing yet. */
  state_since: string | null;
  /** When it told this, in milliseconds of this browser's clock. */
  told_at: number | null;
  term: number | null;
  round: number | null;
  weight: number | null;
  /** What its last local round has measured. */
  metrics: Metrics;
  /** By peer, the local rounds that its model holds. */
  seen: ReadonlyMap<string, number>;
  /** Of all local rounds, the share that its model holds. */
  coverage: number | null;
  contacts: ReadonlyMap<string, Contact>;
  refused: ReadonlyMap<string, number>;
  /** With whom it begins nothing, for what they have sent. */
  quarantine: readonly string[];
  /** Of the bytes that it may send and receive among peers; null: any number. */
  budget: Required<Schemas["Budget"]> | null;
}

/** What a peer has told lately. If it is partial, `seen` and `contacts` have only whom something has changed of. */
export interface PeerNews extends Peer {
  partial: boolean;
}

export interface JobPeers {
  /** Version of the roster; null: none was signed. */
  roster: number | null;
  peers: Peer[];
  now: PeersPoint | null;
  /** Oldest first. */
  history: PeersPoint[];
}

export interface ModelRow extends Omit<Schemas["ModelRow"], "metrics"> {
  metrics: Metrics;
}

export type RawComparison = Schemas["Comparison"];
export type RawHeat = Schemas["Heat"];
export type RawBands = Schemas["Bands"];
export type Round = Schemas["Round"];
export type ClientInRound = Schemas["ClientInRound"];
export type Phases = Schemas["Phases"];
export type ReportRow = Schemas["ReportRow"];
