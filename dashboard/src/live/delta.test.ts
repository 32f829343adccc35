import { expect, test } from "vitest";
import { readDelta } from "./delta";

test("an event's job and numbers are read", () => {
  const data = JSON.stringify({ job: "digits", number: 4, metrics: { "eval/loss": "Infinity" } });
  expect(readDelta("metrics", data, 0)).toEqual({
    kind: "metrics",
    job: "digits",
    number: 4,
    metrics: { "eval/loss": Infinity },
    provisional: null,
  });
});

test("a job's end is a moment of this browser's clock", () => {
  const data = JSON.stringify({ job: "digits", name: "digits", eta_s: 2, metrics: {}, best: {} });
  const delta = readDelta("job", data, 500);
  expect(delta).toMatchObject({ kind: "job", job: "digits", value: { name: "digits", eta_at: 2500 } });
});

test("the job's name is no part of a version, a note or a node", () => {
  const version = readDelta("version", JSON.stringify({ job: "digits", number: 1, digest: "ab", metrics: {}, numbers: {} }), 0);
  expect(version).toEqual({ kind: "version", job: "digits", version: { number: 1, digest: "ab", metrics: {}, numbers: {}, provisional: null } });
  const note = readDelta("note", JSON.stringify({ job: "digits", id: 9, text: "ask 4" }), 0);
  expect(note).toEqual({ kind: "note", job: "digits", note: { id: 9, text: "ask 4" } });
  const nodes = readDelta(
    "nodes",
    JSON.stringify({ job: "digits", nodes: [{ name: "ada", last_seen_s: 1, metrics: {}, losses: [] }] }),
    3000,
  );
  expect(nodes).toEqual({
    kind: "nodes",
    job: "digits",
    nodes: [{ name: "ada", last_seen_s: 1, metrics: {}, losses: [], seen_at: 2000, left_out: "", deadlines: 0, deadlines_missed: 0 }],
  });
});

test("what is not JSON is refused", () => {
  expect(() => readDelta("traffic", "{", 0)).toThrow(SyntaxError);
});

test("peers are told with the roster that names them and the newest point", () => {
  const data = JSON.stringify({ job: "digits", roster: 3, peers: [{ name: "ada", inbound: true, told_s: 1 }], now: null });
  const delta = readDelta("peers", data, 3000);
  expect(delta).toMatchObject({ kind: "peers", job: "digits", roster: 3, now: null });
  expect(delta).toHaveProperty("peers.0.told_at", 2000);
});
