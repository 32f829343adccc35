import { expect, test } from "vitest";
import type { FleetNode } from "../api/types";
import { filterNodes, countStates, nodeTags } from "./nodeList";

const node = (name: string, rest: Partial<FleetNode> = {}): FleetNode => ({
  name,
  state: "online",
  availability: "active",
  jobs: [],
  last_seen_s: 1,
  joined_at: "2026-11-21T08:00:00Z",
  info: {},
  reports: 0,
  up_bytes: 0,
  down_bytes: 0,
  failures: 0,
  last_error: null,
  ...rest,
});
const names = (nodes: FleetNode[]) => nodes.map(({ name }) => name);

test("names in the order in which people count", () => {
  const nodes = [node("n-10"), node("n-9"), node("n-1")];
  expect(names(filterNodes(nodes, "", "all", "name"))).toEqual(["n-1", "n-9", "n-10"]);
});

test("the greatest first; who was never seen is last", () => {
  const nodes = [node("a", { last_seen_s: null }), node("b", { last_seen_s: 40 }), node("c", { last_seen_s: 2 })];
  expect(names(filterNodes(nodes, "", "all", "seen"))).toEqual(["c", "b", "a"]);
  expect(names(filterNodes([node("a"), node("b", { failures: 3 })], "", "all", "failures"))).toEqual(["b", "a"]);
});

test("a state and a text narrow it down: of a name, a job, or what the node says of itself", () => {
  const nodes = [
    node("ward", { state: "gone", jobs: ["digits"] }),
    node("lab", { info: { tags: ["GPU", 7], device: "cuda" } }),
    node("constructor"),
  ];
  expect(names(filterNodes(nodes, "", "gone", "name"))).toEqual(["ward"]);
  expect(names(filterNodes(nodes, "DIGI", "all", "name"))).toEqual(["ward"]);
  expect(names(filterNodes(nodes, "gpu", "all", "name"))).toEqual(["lab"]);
  expect(names(filterNodes(nodes, "gpu", "gone", "name"))).toEqual([]);
  expect(countStates(nodes)).toEqual({ all: 3, training: 0, online: 2, stale: 0, gone: 1 });
});

test("what a node says of itself may be anything", () => {
  expect(nodeTags({ info: { tags: "x", shoal: { a: 1 }, device: null, torch: 2.5 } })).toEqual(["torch 2.5"]);
});
