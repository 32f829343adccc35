import { expect, test } from "vitest";
import { link, peer } from "../test/factories";
import type { TrafficRow } from "../api/types";
import { describeBudget, quarantined, refusals, countAlive, exchangeTotals, serverBytes } from "./peerStats";

test("who is in quarantine is named with those at whom", () => {
  const peers = [peer("a", { quarantine: ["mallory", "eve"] }), peer("b", { quarantine: ["mallory"] }), peer("c")];
  expect(quarantined(peers)).toEqual([
    ["eve", ["a"]],
    ["mallory", ["a", "b"]],
  ]);
});

test("refusals are counted by code, the most first, with those who refused", () => {
  const peers = [
    peer("a", { refused: new Map([["trust.signature", 2], ["trust.replayed", 1]]) }),
    peer("b", { refused: new Map([["trust.signature", 5], ["trust.norm", 0]]) }),
  ];
  expect(refusals(peers)).toEqual([
    { code: "trust.signature", count: 7, by: [["b", 5], ["a", 2]] },
    { code: "trust.replayed", count: 1, by: [["a", 1]] },
  ]);
});

test("a peer's exchanges are summed over all others, and so is whom it sees", () => {
  const one = peer("a", { links: new Map([["b", link({ sent: 7 })], ["c", link({ sent: 3, state: "dead" })]]) });
  expect(exchangeTotals(one)).toEqual({ exchanges: 6, sent: 10, received: 1800 });
  expect(countAlive(one)).toEqual({ alive: 1, others: 2 });
});

test("what nodes send each other is not between them and the coordinator", () => {
  const row = (node: string | null, kind: string, bytes: number) => ({ node, kind, bytes }) as TrafficRow;
  const rows = [row("a", "report", 7), row("a", "gossip", 100), row("a", "work", 3), row("", "dashboard", 9)];
  expect(serverBytes(rows)).toEqual(new Map([["a", 10]]));
});

test("what a peer may still send and receive is said in words, once it has a budget", () => {
  const budget = { bytes_per_hour: 100e6, left: 12.5e6, wait_s: 0 };
  expect(describeBudget(peer("a"))).toBeNull();
  expect(describeBudget(peer("a", { budget }))).toBe("12.5 MB left of 100 MB per hour");
  expect(describeBudget(peer("a", { budget: { ...budget, left: -1, wait_s: 75 } }))).toBe("limit reached, next exchange in 1 m 15 s");
});
