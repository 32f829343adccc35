import { expect, test } from "vitest";
import { job, node } from "../test/factories";
import { decodeJob, decodeMetrics, decodeNode, decodeNumber, decodePeer } from "./decode";
import type { RawJob, RawPeer } from "./types";

test("JSON's missing numbers come back", () => {
  expect(["NaN", "Infinity", "-Infinity", 0.5].map(decodeNumber)).toEqual([NaN, Infinity, -Infinity, 0.5]);
  expect([null, "x", undefined].map(decodeNumber)).toEqual([undefined, undefined, undefined]);
});

test("metrics keep what is a number and drop what is not", () => {
  expect(decodeMetrics({ "eval/loss": "NaN", "eval/accuracy": 0.1, odd: null })).toStrictEqual({
    "eval/loss": NaN,
    "eval/accuracy": 0.1,
  });
  expect(decodeMetrics(undefined)).toEqual({});
});

test("a node that is called NaN keeps its name", () => {
  expect(decodeNode(node("NaN"), 0).name).toBe("NaN");
});

test("durations become moments of this clock", () => {
  const { eta_at: _, ...plain } = job();
  expect(decodeJob({ ...plain, eta_s: 12 } as RawJob, 1000).eta_at).toBe(13_000);
  expect(decodeJob({ ...plain, eta_s: null } as RawJob, 1000).eta_at).toBeNull();
  expect(decodeNode(node("ada", { last_seen_s: 2.5 }), 10_000).last_seen_at).toBe(7_500);
  expect(decodeNode(node("ada", { last_seen_s: null }), 10_000).last_seen_at).toBeNull();
});

test("a peer that has told nothing has nothing", () => {
  const silent = decodePeer({ name: "ada", peer_id: "x", is_reachable: false }, 1000);
  expect(silent).toMatchObject({ state: null, state_since: null, reported_at: null, local_rounds: null, coverage: null });
  expect([silent.rounds_by_peer.size, silent.links.size, silent.refused.size]).toEqual([0, 0, 0]);
  expect(silent.budget).toBeNull();
});

test("a peer's last change is since when it stands so, and its names are those of nodes alone", () => {
  const changes = [
    { at: "2026-11-21T08:00:00Z", state: "suspect" as const },
    { at: "2026-11-21T08:00:09Z", state: "gossip" as const },
  ];
  const told = { state: "gossip" as const, changes, told_s: 2.5, peers: { ben: { state: "alive" as const, sent: 7 } } };
  const ada = decodePeer({ name: "ada", peer_id: "x", is_reachable: true, ...told } as RawPeer, 10_000);
  expect(ada).toMatchObject({ state_since: changes[1]?.at, reported_at: 7500 });
  expect(ada.links.get("ben")).toEqual({ state: "alive", exchanges: 0, sent: 7, received: 0, rtt_ms: null, carried: 0 });
  expect(ada.links.get("constructor")).toBeUndefined();
});
