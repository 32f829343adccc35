import { expect, test } from "vitest";
import { contact, peer } from "../test/make";
import type { TrafficRow } from "../api/types";
import { allowance, quarantined, refusals, sight, traded, withServer } from "./tally";

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
  const one = peer("a", { contacts: new Map([["b", contact({ sent: 7 })], ["c", contact({ sent: 3, state: "dead" })]]) });
  expect(traded(one)).toEqual({ exchanges: 6, sent: 10, received: 1800 });
  expect(sight(one)).toEqual({ alive: 1, others: 2 });
});

test("what nodes send each other is not between them and the coordinator", () => {
  const row = (node: string | null, kind: string, bytes: number) => ({ node, kind, bytes }) as TrafficRow;
  const rows = [row("a", "report", 7), row("a", "gossip", 100), row("a", "work", 3), row("", "dashboard", 9)];
  expect(withServer(rows)).toEqual(new Map([["a", 10]]));
});

test("what a peer may still send and receive is said in words, once it has a budget", () => {
  const budget = { bytes_per_hour: 100e6, left: 12.5e6, wait_s: 0 };
  expect(allowance(peer("a"))).toBeNull();
  expect(allowance(peer("a", { budget }))).toBe("12.5 MB left of 100 MB per hour");
  expect(allowance(peer("a", { budget: { ...budget, left: -1, wait_s: 75 } }))).toBe("bytes used up, again in 1 m 15 s");
});
