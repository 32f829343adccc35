import { expect, test } from "vitest";
import type { JobNode, Peer } from "../api/types";
import { link, node, peer } from "../test/factories";
import { ACTIVE_MS, edgeActivity, topologyGraph, maxBytes, SERVER, lineWidth, type EdgeActivity } from "./topologyGraph";
import { REPORT_TIMEOUT_MS } from "./peerStatus";

const NOW = 1_000_000;
const told = { reported_at: NOW - 1000 };

const NOTHING = new Map<string, number>();

const lines = (nodes: JobNode[], peers: Peer[]) =>
  topologyGraph(nodes, peers, NOTHING, NOW).edges.map(({ from, to, unreachable }) => `${from}-${to || "server"}${unreachable ? " (unreachable)" : ""}`);

test("at the server every node has a line to it, as wide as its bytes", () => {
  const nodes = [node("b", { up_bytes: 1e6 }), node("a", { state: "gone" })]; // maxBytes of that is gossip
  const peers = [peer("a", { ...told, state: "coordinated" }), peer("b", { ...told, state: null })];
  const found = topologyGraph(nodes, peers, new Map([["b", 120]]), NOW);
  expect(found.nodes.map(({ name, status }) => [name, status])).toEqual([
    ["a", "gone"],
    ["b", "idle"],
  ]);
  expect(found.edges.map(({ from, to, bytes, unreachable }) => [from, to, bytes, unreachable])).toEqual([
    ["a", SERVER, 0, true],
    ["b", SERVER, 120, false],
  ]);
});

test("a node that takes no part is not drawn, unless it gossips", () => {
  const nodes = [node("a"), node("b", { excluded_text: "not named by the job" }), node("c", { excluded_text: "drained" })];
  const { nodes: drawn, edges } = topologyGraph(nodes, [peer("c", told)], NOTHING, NOW);
  expect(drawn.map(({ name }) => name)).toEqual(["a", "c"]);
  expect(edges.map(({ from }) => from)).toEqual(["a"]);
});

test("away, pairs that have exchanged something have one line, with the larger of both sums", () => {
  const peers = [
    peer("a", { ...told, links: new Map([["b", link({ sent: 10, received: 5, exchanges: 2, rtt_ms: 7 })]]) }),
    peer("b", { ...told, links: new Map([["a", link({ sent: 6, received: 10, exchanges: 3, rtt_ms: 4 })]]) }),
    peer("c", { ...told, links: new Map([["a", link({ sent: 0, received: 0, exchanges: 0 })]]) }),
  ];
  const { edges } = topologyGraph([], peers, NOTHING, NOW);
  expect(edges).toEqual([
    { id: "a b", from: "a", to: "b", bytes: 16, exchanges: 3, rtt_ms: 4, state: "alive", unreachable: false },
  ]);
});

test("who hands back is on both, and what was exchanged is forgotten once all are back", () => {
  const links = new Map([["b", link()]]);
  const a = peer("a", { ...told, links, state: "returning" });
  const b = peer("b", { ...told, state: "coordinated" });
  expect(lines([node("a"), node("b")], [a, b])).toEqual(["a-server", "b-server", "a-b"]);
  expect(lines([node("a"), node("b")], [{ ...a, state: "coordinated" }, b])).toEqual(["a-server", "b-server"]);
});

test("one that suspects the server still has its line to it, as a unreachable", () => {
  const suspect = peer("a", { ...told, state: "suspect", links: new Map([["b", link()]]) });
  expect(lines([node("a"), node("b")], [suspect, peer("b", { ...told, state: "coordinated" })])).toEqual([
    "a-server (unreachable)",
    "b-server",
  ]);
});

test("a silent peer is lost unless one that is heard says that it lives", () => {
  const silent = peer("a", { reported_at: NOW - REPORT_TIMEOUT_MS - 1 });
  const witness = (state: "alive" | "dead", reported_at: number) =>
    peer("b", { reported_at, links: new Map([["a", link({ state })]]) });
  const standingOf = (other: ReturnType<typeof peer>, now: number | null = NOW) =>
    topologyGraph([], [silent, other], NOTHING, now).nodes[0]?.status;
  expect(standingOf(witness("alive", NOW))).toBe("apart");
  expect(standingOf(witness("dead", NOW))).toBe("lost");
  expect(standingOf(witness("alive", NOW - REPORT_TIMEOUT_MS - 1))).toBe("lost");
  expect(standingOf(witness("dead", NOW), null)).toBe("gossip"); // nobody listens any more: silence says nothing
});

test("lines of lost nodes stay as ghosts, and so do those that one end says are dead", () => {
  const dead = peer("a", { ...told, links: new Map([["b", link({ state: "dead" })], ["c", link()]]) });
  const others = [peer("b", told), peer("c", { reported_at: NOW - REPORT_TIMEOUT_MS - 1 })];
  expect(lines([], [dead, ...others])).toEqual(["a-b (unreachable)", "a-c"]); // a vouches for c
  const alone = { ...dead, links: new Map([["c", link({ state: "suspect" })]]) };
  expect(lines([], [alone, ...others])).toEqual(["a-c (unreachable)"]);
});

test("a node that is called like a property of every object is a node like others", () => {
  const { edges } = topologyGraph([], [peer("constructor", told), peer("b", told)], NOTHING, NOW);
  expect(edges).toEqual([]);
});

test("the width grows with the root of the bytes, from thin to thick", () => {
  expect([0, 25, 100].map((bytes) => lineWidth(bytes, 100, 1, 9))).toEqual([1, 5, 9]);
  expect(lineWidth(0, 0, 1, 9)).toBe(1);
});

test("a line is busy when its bytes grow while somebody looks", () => {
  const edge = (id: string, bytes: number) => ({ ...topologyGraph([node("a")], [], NOTHING, NOW).edges[0]!, id, bytes });
  const busy = (found: Map<string, EdgeActivity>, now: number) =>
    [...found].filter(([, { at }]) => now - at < ACTIVE_MS).map(([id]) => id);
  const first = edgeActivity(null, [edge("x", 10), edge("y", 5)], 0);
  expect(busy(first, 0)).toEqual([]);
  const second = edgeActivity(first, [edge("x", 11), edge("y", 5), edge("z", 1)], 1000);
  expect(busy(second, 1000)).toEqual(["x", "z"]);
  const third = edgeActivity(second, [edge("x", 11), edge("y", 5), edge("z", 1)], 2000);
  expect(busy(third, 1000 + ACTIVE_MS)).toEqual([]);
});

test("lines to the server and among peers have each their own scale", () => {
  const links = new Map([["b", link({ sent: 3, received: 4 })]]);
  const peers = [peer("a", { ...told, links }), peer("b", { ...told, state: "coordinated" })];
  const { edges } = topologyGraph([node("a"), node("b")], peers, new Map([["b", 99]]), NOW);
  expect(maxBytes(edges)).toEqual({ server: 99, peers: 7 });
  expect(maxBytes([])).toEqual({ server: 0, peers: 0 });
});
