import { expect, test } from "vitest";
import type { TrafficRow } from "../api/types";
import { nodeCosts } from "./nodeCosts";

const row = (version: number, node: string, direction: TrafficRow["direction"], bytes: number): TrafficRow => ({
  version,
  node,
  kind: null,
  direction,
  requests: 1,
  head_bytes: 0,
  body_bytes: bytes,
  bytes,
});

const rows = [
  row(-1, "b", "up", 1),
  row(0, "b", "up", 10),
  row(0, "b", "down", 20),
  row(1, "b", "down", 200),
  row(0, "a", "down", 7),
  row(2, "a", "up", 1000),
  row(-1, "", "down", 5),
];

test("each node has its price, in both directions", () => {
  expect(nodeCosts(rows, 1)).toEqual([
    { node: "", up: 0, down: 5, untilTarget: { up: 0, down: 5 } },
    { node: "a", up: 1000, down: 7, untilTarget: { up: 0, down: 7 } },
    { node: "b", up: 11, down: 220, untilTarget: { up: 11, down: 20 } },
  ]);
  expect(nodeCosts(rows, 2)[2]?.untilTarget).toEqual({ up: 11, down: 220 });
});

test("what was not reached has none", () => {
  expect(nodeCosts(rows, undefined).map(({ untilTarget }) => untilTarget)).toEqual([undefined, undefined, undefined]);
});
