/** The graph of a job's nodes and their connections to the coordinator and, in gossip mode, to each other. */
import type { JobNode, LinkState, Peer } from "../api/types";
import { naturalOrder } from "../format/text";
import { isUnreachable, isGossiping, peerStatus, type PeerStatus } from "./peerStatus";

/** The end of an edge at the coordinator; no node has this name. */
export const SERVER = "";

export interface GraphNode {
  name: string;
  status: PeerStatus;
  peer: Peer | undefined;
  /** To and from the coordinator. */
  bytes: number;
}

export interface GraphEdge {
  id: string;
  /** Two nodes in the order of their names, or a node and the server. */
  from: string;
  to: string;
  /** In both directions: the greater count of the two ends. */
  bytes: number;
  /** Number of completed exchanges; null for an edge to the server. */
  exchanges: number | null;
  rtt_ms: number | null;
  /** The worse of the states that both ends report; null for an edge to the server. */
  state: LinkState | null;
  /** True if one end is unreachable, or reports the other as dead. */
  unreachable: boolean;
}

export interface TopologyGraph {
  nodes: GraphNode[];
  edges: GraphEdge[];
}

/** Excluded nodes are drawn only while they gossip. `serverBytes`: bytes between each node and the coordinator; `now` as for `peerStatus`. */
export function topologyGraph(
  nodes: readonly JobNode[],
  peers: readonly Peer[],
  serverBytes: ReadonlyMap<string, number>,
  now: number | null,
): TopologyGraph {
  const byName = new Map(peers.map((peer) => [peer.name, peer]));
  const known = new Map(nodes.map((node) => [node.name, node]));
  const names = [...new Set([...known.keys(), ...byName.keys()])].sort(naturalOrder);
  const all = names.map((name) => {
    const peer = byName.get(name);
    return { name, peer, status: peerStatus(peer, known.get(name), peers, now), bytes: serverBytes.get(name) ?? 0 };
  });
  const found = all.filter(({ name, status }) => (known.get(name)?.excluded_text ?? "") === "" || isGossiping(status));
  return { nodes: found, edges: [...serverEdges(found), ...peerEdges(found)] };
}

/** Nodes in gossip mode have no edge to the server, except while they return. */
function serverEdges(nodes: GraphNode[]): GraphEdge[] {
  return nodes
    .filter(({ status }) => status === "returning" || (!isGossiping(status) && status !== "lost"))
    .map(({ name, bytes, status }) => ({
      id: name,
      from: name,
      to: SERVER,
      bytes,
      exchanges: null,
      rtt_ms: null,
      state: null,
      unreachable: isUnreachable(status) || status === "suspect",
    }));
}

const BY_SEVERITY: readonly LinkState[] = ["alive", "suspect", "dead", "left"];

/** Pairs that have exchanged models, while at least one of the two is in gossip mode. */
function peerEdges(nodes: GraphNode[]): GraphEdge[] {
  const edges: GraphEdge[] = [];
  nodes.forEach((a, index) => {
    for (const b of nodes.slice(index + 1)) {
      const ends = [a.peer?.links.get(b.name), b.peer?.links.get(a.name)].filter((end) => end !== undefined);
      const greatest = (what: (end: (typeof ends)[number]) => number) => Math.max(0, ...ends.map(what));
      const bytes = greatest(({ sent, received }) => sent + received);
      if (bytes === 0 || !(isGossiping(a.status) || isGossiping(b.status))) continue;
      const state = BY_SEVERITY[greatest((end) => BY_SEVERITY.indexOf(end.state))] as LinkState;
      const times = ends.flatMap((end) => (end.rtt_ms === null ? [] : [end.rtt_ms]));
      edges.push({
        id: `${a.name} ${b.name}`,
        from: a.name,
        to: b.name,
        bytes,
        exchanges: greatest((end) => end.exchanges),
        rtt_ms: times.length > 0 ? Math.min(...times) : null,
        state,
        unreachable: state === "dead" || state === "left" || isUnreachable(a.status) || isUnreachable(b.status),
      });
    }
  });
  return edges;
}

export interface MaxBytes {
  server: number;
  peers: number;
}

/** Return the greatest number of bytes of the edges to the server and of those between peers: each kind has its own scale. */
export function maxBytes(edges: readonly GraphEdge[]): MaxBytes {
  const of = (toServer: boolean) =>
    Math.max(0, ...edges.filter(({ to }) => (to === SERVER) === toServer).map(({ bytes }) => bytes));
  return { server: of(true), peers: of(false) };
}

/** Return the width of a line between `thin` and `thick` (px), by the square root of its share of the bytes. */
export function lineWidth(bytes: number, max: number, thin: number, thick: number): number {
  return max > 0 ? thin + (thick - thin) * Math.sqrt(bytes / max) : thin;
}

/** Time for which an edge is shown as active after its bytes have increased; a little longer than the report interval (ms). */
export const ACTIVE_MS = 6000;

export interface EdgeActivity {
  bytes: number;
  /** Time of the last increase (ms); -Infinity: none since the page was opened. */
  at: number;
}

/** Update the activity of each edge. An edge that did not exist before has just been used. */
export function edgeActivity(
  before: ReadonlyMap<string, EdgeActivity> | null,
  edges: GraphEdge[],
  now: number,
): Map<string, EdgeActivity> {
  return new Map(
    edges.map(({ id, bytes }): [string, EdgeActivity] => {
      const known = before?.get(id);
      if (known !== undefined && bytes <= known.bytes) return [id, known];
      return [id, { bytes, at: before === null || bytes === 0 ? -Infinity : now }];
    }),
  );
}
