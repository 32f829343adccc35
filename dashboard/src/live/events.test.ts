import { expect, test } from "vitest";
import { decodeEvent, EVENT_TYPES, priorityOf } from "./events";

test("an event's job and numbers are decoded", () => {
  const json = JSON.stringify({ job: "digits", number: 4, metrics: { "eval/loss": "Infinity" } });
  expect(decodeEvent("metrics", json, 0)).toEqual({
    type: "metrics",
    job: "digits",
    data: { number: 4, metrics: { "eval/loss": Infinity }, provisional: null },
  });
});

test("a job's expected end is a time of this browser's clock", () => {
  const json = JSON.stringify({ job: "digits", name: "digits", eta_s: 2, metrics: {}, best: {} });
  expect(decodeEvent("job", json, 500)).toMatchObject({ type: "job", job: "digits", data: { name: "digits", eta_at: 2500 } });
});

test("the job's name is no part of a version, an event or a node", () => {
  const version = decodeEvent("version", JSON.stringify({ job: "digits", number: 1, digest: "ab", metrics: {}, numbers: {} }), 0);
  expect(version.data).toEqual({ number: 1, digest: "ab", metrics: {}, numbers: {}, provisional: null });
  const jobEvent = decodeEvent("job_event", JSON.stringify({ job: "digits", id: 9, text: "ask 4" }), 0);
  expect(jobEvent).toEqual({ type: "job_event", job: "digits", data: { id: 9, text: "ask 4" } });
  const row = { name: "ada", last_seen_s: 1, metrics: {}, losses: [] };
  const nodes = decodeEvent("nodes", JSON.stringify({ job: "digits", nodes: [row] }), 3000);
  expect(nodes.data).toEqual([{ ...row, last_seen_at: 2000, excluded_text: "", deadlines: 0, deadlines_missed: 0 }]);
});

test("data that is not JSON is rejected", () => {
  expect(() => decodeEvent("traffic", "{", 0)).toThrow(SyntaxError);
});

test("peers come with the roster that names them and the newest point", () => {
  const peers = [{ name: "ada", is_reachable: true, told_s: 1 }];
  const event = decodeEvent("peers", JSON.stringify({ job: "digits", roster: 3, peers, now: null }), 3000);
  expect(event).toMatchObject({ type: "peers", job: "digits", data: { roster: 3, now: null } });
  expect(event).toHaveProperty("data.peers.0.reported_at", 2000);
});

test("versions are shown first, then what charts draw", () => {
  const priorities = EVENT_TYPES.map((type) => [type, priorityOf({ type } as Parameters<typeof priorityOf>[0])]);
  expect(priorities.filter(([, priority]) => priority !== "normal")).toEqual([
    ["version", "version"],
    ["metrics", "chart"],
    ["peers", "chart"],
  ]);
});
