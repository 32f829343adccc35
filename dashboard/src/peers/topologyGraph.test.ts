import { expect, test } from "vitest";
import type { JobNode, Peer } from "../api/types";
import { contact, node, peer } from "../test/make";
import { BUSY, flows, graph, most, SERVER, width, type Flow } from "./graph";
import { LATE } from "./standing";

const NOW = 1_000_000;
const told = { told_at: NOW - 1000 };

const NOTHING = new Map<string, number>();

const lines = (nodes: JobNode[], peers: Peer[]) =>
  graph(nodes, peers, NOTHING, NOW).edges.map(({ from, to, ghost }) => `${from}-${to || "server"}${ghost ? " (ghost)" : ""}`);

test("at the server every node has a line to it, as wide as its bytes", () => {
  const nodes = [node("b", { up_bytes: 1e6 }), node("a", { state: "gone" })]; // most of that is gossip
  const peers = [peer("a", { ...told, state: "coordinated" }), peer("b", { ...told, state: null })];
  const found = graph(nodes, peers, new Map([["b", 120]]), NOW);
  expect(found.nodes.map(({ name, standing }) => [name, standing])).toEqual([
    ["a", "gone"],
    ["b", "idle"],
  ]);
  expect(found.edges.map(({ from, to, bytes, ghost }) => [from, to, bytes, ghost])).toEqual([
    ["a", SERVER, 0, true],
    ["b", SERVER, 120, false],
  ]);
});

test("away, pairs that have exchanged something have one line, with the larger of both sums", () => {
  const peers = [
    peer("a", { ...told, contacts: new Map([["b", contact({ sent: 10, received: 5, exchanges: 2, rtt_ms: 7 })]]) }),
    peer("b", { ...told, contacts: new Map([["a", contact({ sent: 6, received: 10, exchanges: 3, rtt_ms: 4 })]]) }),
    peer("c", { ...told, contacts: new Map([["a", contact({ sent: 0, received: 0, exchanges: 0 })]]) }),
  ];
  const { edges } = graph([], peers, NOTHING, NOW);
  expect(edges).toEqual([
    { id: "a b", from: "a", to: "b", bytes: 16, exchanges: 3, rtt_ms: 4, state: "alive", ghost: false },
  ]);
});

test("who hands back is on both, and what was exchanged is forgotten once all are back", () => {
  const contacts = new Map([["b", contact()]]);
  const a = peer("a", { ...told, contacts, state: "handover" });
  const b = peer("b", { ...told, state: "coordinated" });
  expect(lines([node("a"), node("b")], [a, b])).toEqual(["a-server", "b-server", "a-b"]);
  expect(lines([node("a"), node("b")], [{ ...a, state: "coordinated" }, b])).toEqual(["a-server", "b-server"]);
});

test("one that suspects the server still has its line to it, as a ghost", () => {
  const suspect = peer("a", { ...told, state: "suspect", contacts: new Map([["b", contact()]]) });
  expect(lines([node("a"), node("b")], [suspect, peer("b", { ...told, state: "coordinated" })])).toEqual([
    "a-server (ghost)",
    "b-server",
  ]);
});

test("a silent peer is lost unless one that is heard says that it lives", () => {
  const silent = peer("a", { told_at: NOW - LATE - 1 });
  const witness = (state: "alive" | "dead", told_at: number) =>
    peer("b", { told_at, contacts: new Map([["a", contact({ state })]]) });
  const standingOf = (other: ReturnType<typeof peer>, now: number | null = NOW) =>
    graph([], [silent, other], NOTHING, now).nodes[0]?.standing;
  expect(standingOf(witness("alive", NOW))).toBe("apart");
  expect(standingOf(witness("dead", NOW))).toBe("lost");
  expect(standingOf(witness("alive", NOW - LATE - 1))).toBe("lost");
  expect(standingOf(witness("dead", NOW), null)).toBe("away"); // nobody listens any more: silence says nothing
});

test("lines of lost nodes stay as ghosts, and so do those that one end says are dead", () => {
  const dead = peer("a", { ...told, contacts: new Map([["b", contact({ state: "dead" })], ["c", contact()]]) });
  const others = [peer("b", told), peer("c", { told_at: NOW - LATE - 1 })];
  expect(lines([], [dead, ...others])).toEqual(["a-b (ghost)", "a-c"]); // a vouches for c
  const alone = { ...dead, contacts: new Map([["c", contact({ state: "suspect" })]]) };
  expect(lines([], [alone, ...others])).toEqual(["a-c (ghost)"]);
});

test("a node that is called like a property of every object is a node like others", () => {
  const { edges } = graph([], [peer("constructor", told), peer("b", told)], NOTHING, NOW);
  expect(edges).toEqual([]);
});

test("the width grows with the root of the bytes, from thin to thick", () => {
  expect([0, 25, 100].map((bytes) => width(bytes, 100, 1, 9))).toEqual([1, 5, 9]);
  expect(width(0, 0, 1, 9)).toBe(1);
});

test("a line is busy when its bytes grow while somebody looks", () => {
  const edge = (id: string, bytes: number) => ({ ...graph([node("a")], [], NOTHING, NOW).edges[0]!, id, bytes });
  const busy = (found: Map<string, Flow>, now: number) =>
    [...found].filter(([, { at }]) => now - at < BUSY).map(([id]) => id);
  const first = flows(null, [edge("x", 10), edge("y", 5)], 0);
  expect(busy(first, 0)).toEqual([]);
  const second = flows(first, [edge("x", 11), edge("y", 5), edge("z", 1)], 1000);
  expect(busy(second, 1000)).toEqual(["x", "z"]);
  const third = flows(second, [edge("x", 11), edge("y", 5), edge("z", 1)], 2000);
  expect(busy(third, 1000 + BUSY)).toEqual([]);
});

test("lines to the server and among peers have each their own scale", () => {
  const contacts = new Map([["b", contact({ sent: 3, received: 4 })]]);
  const peers = [peer("a", { ...told, contacts }), peer("b", { ...told, state: "coordinated" })];
  const { edges } = graph([node("a"), node("b")], peers, new Map([["b", 99]]), NOW);
  expect(most(edges)).toEqual({ server: 99, peers: 7 });
  expect(most([])).toEqual({ server: 0, peers: 0 });
});
