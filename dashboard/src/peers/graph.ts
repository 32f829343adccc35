/** Who talks to whom: the server's star, the exchanges of those that carry on among themselves, or both. */
import type { JobNode, Liveness, Peer } from "../api/types";
import { byNumber } from "../format/text";
import { isGhost, isOut, standing, type Standing } from "./standing";

/** The other end of a line to the coordinator; no node is called so. */
export const SERVER = "";

export interface GraphNode {
  name: string;
  standing: Standing;
  peer: Peer | undefined;
  /** Between it and the coordinator, in both directions. */
  bytes: number;
}

export interface GraphEdge {
  id: string;
  /** Two nodes in the order of their names, or a node and the server. */
  from: string;
  to: string;
  /** On the wire in both directions, as the end that knows of more tells it. */
  bytes: number;
  /** Exchanges that were completed; null for a line to the server. */
  exchanges: number | null;
  rtt_ms: number | null;
  /** The worse of what both ends say of each other; null for a line to the server. */
  state: Liveness | null;
  /** One end is not heard of, or says that the other is dead. */
  ghost: boolean;
}

export interface Graph {
  nodes: GraphNode[];
  edges: GraphEdge[];
}

/** `served`: bytes between each node and the coordinator; `now` as for `standing`. */
export function graph(
  nodes: readonly JobNode[],
  peers: readonly Peer[],
  served: ReadonlyMap<string, number>,
  now: number | null,
): Graph {
  const byName = new Map(peers.map((peer) => [peer.name, peer]));
  const known = new Map(nodes.map((node) => [node.name, node]));
  const names = [...new Set([...known.keys(), ...byName.keys()])].sort(byNumber);
  const found = names.map((name) => {
    const peer = byName.get(name);
    return { name, peer, standing: standing(peer, known.get(name), peers, now), bytes: served.get(name) ?? 0 };
  });
  return { nodes: found, edges: [...star(found), ...exchanges(found)] };
}

/** A node that has gone away has no line to the server, one that hands back has; that of one that suspects is a ghost. */
function star(nodes: GraphNode[]): GraphEdge[] {
  return nodes
    .filter(({ standing }) => standing === "handover" || (!isOut(standing) && standing !== "lost"))
    .map(({ name, bytes, standing }) => ({
      id: name,
      from: name,
      to: SERVER,
      bytes,
      exchanges: null,
      rtt_ms: null,
      state: null,
      ghost: isGhost(standing) || standing === "suspect",
    }));
}

const WORSE: readonly Liveness[] = ["alive", "suspect", "dead", "left"];

/** Pairs that have exchanged something, while at least one of the two is out. */
function exchanges(nodes: GraphNode[]): GraphEdge[] {
  const edges: GraphEdge[] = [];
  nodes.forEach((a, index) => {
    for (const b of nodes.slice(index + 1)) {
      const ends = [a.peer?.contacts.get(b.name), b.peer?.contacts.get(a.name)].filter((end) => end !== undefined);
      const most = (what: (end: (typeof ends)[number]) => number) => Math.max(0, ...ends.map(what));
      const bytes = most(({ sent, received }) => sent + received);
      if (bytes === 0 || !(isOut(a.standing) || isOut(b.standing))) continue;
      const state = WORSE[most((end) => WORSE.indexOf(end.state))] as Liveness;
      const times = ends.flatMap((end) => (end.rtt_ms === null ? [] : [end.rtt_ms]));
      edges.push({
        id: `${a.name} ${b.name}`,
        from: a.name,
        to: b.name,
        bytes,
        exchanges: most((end) => end.exchanges),
        rtt_ms: times.length > 0 ? Math.min(...times) : null,
        state,
        ghost: state === "dead" || state === "left" || isGhost(a.standing) || isGhost(b.standing),
      });
    }
  });
  return edges;
}

export interface Most {
  server: number;
  peers: number;
}

/** The most bytes of a line to the server and of one between peers: each kind has its own scale. */
export function most(edges: readonly GraphEdge[]): Most {
  const of = (toServer: boolean) =>
    Math.max(0, ...edges.filter(({ to }) => (to === SERVER) === toServer).map(({ bytes }) => bytes));
  return { server: of(true), peers: of(false) };
}

/** How wide a line is, from its bytes: an area that grows with them, between `thin` and `thick` px. */
export function width(bytes: number, most: number, thin: number, thick: number): number {
  return most > 0 ? thin + (thick - thin) * Math.sqrt(bytes / most) : thin;
}

/** How long a line is drawn as busy after its bytes have grown (ms): a little longer than words are apart. */
export const BUSY = 6000;

export interface Flow {
  bytes: number;
  /** When that grew last (ms); -Infinity: not while somebody looked. */
  at: number;
}

/** What has flowed along each line, from what was known of it before. A line that is new has just been used. */
export function flows(before: ReadonlyMap<string, Flow> | null, edges: GraphEdge[], now: number): Map<string, Flow> {
  return new Map(
    edges.map(({ id, bytes }): [string, Flow] => {
      const known = before?.get(id);
      if (known !== undefined && bytes <= known.bytes) return [id, known];
      return [id, { bytes, at: before === null || bytes === 0 ? -Infinity : now }];
    }),
  );
}
