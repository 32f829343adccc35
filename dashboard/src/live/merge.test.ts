import { describe, expect, test } from "vitest";
import { contact, job, node, note, peer, peerNews, point, version } from "../test/make";
import type { Delta } from "./delta";
import {
  mergeJob,
  mergeJobs,
  mergeMoves,
  mergeNodes,
  mergeNotes,
  mergePeers,
  mergeVersions,
  NOTES_MAX,
  POINTS_MAX,
} from "./merge";

describe("versions", () => {
  const merge = mergeVersions("digits");
  const known = [version(0), version(1, { "train/loss": 1 })];

  test("a new one is appended, whatever was thinned out before it", () => {
    expect(
      merge([version(0), version(8)], { kind: "version", job: "digits", version: version(9) }).map((v) => v.number),
    ).toEqual([0, 8, 9]);
  });

  test("one that came late goes to its place", () => {
    expect(
      merge([version(0), version(2)], { kind: "version", job: "digits", version: version(1) }).map((v) => v.number),
    ).toEqual([0, 1, 2]);
  });

  test("a replay changes nothing but keeps the metrics of both", () => {
    const again = version(1, { "eval/loss": 2 });
    const merged = merge(known, { kind: "version", job: "digits", version: again });
    expect(merged).toHaveLength(2);
    expect(merged[1]?.metrics).toEqual({ "train/loss": 1, "eval/loss": 2 });
  });

  test("metrics that come later join their version", () => {
    const merged = merge(known, { kind: "metrics", job: "digits", number: 1, metrics: { "eval/accuracy": NaN } });
    expect(merged[1]?.metrics).toEqual({ "train/loss": 1, "eval/accuracy": NaN });
    expect(known[1]?.metrics).toEqual({ "train/loss": 1 });
  });

  test("what concerns another job or an unknown version leaves the very same list", () => {
    expect(merge(known, { kind: "version", job: "other", version: version(2) })).toBe(known);
    expect(merge(known, { kind: "metrics", job: "digits", number: 7, metrics: {} })).toBe(known);
    expect(merge(known, { kind: "note", job: "digits", note: note(1) })).toBe(known);
  });
});

test("only moves join the moves", () => {
  const merge = mergeMoves("digits");
  const known = [note(3, { kind: "mode" })];
  expect(merge(known, { kind: "note", job: "digits", note: note(4, { kind: "state" }) })).toBe(known);
  expect(merge(known, { kind: "note", job: "other", note: note(4, { kind: "mode" }) })).toBe(known);
  expect(merge(known, { kind: "note", job: "digits", note: note(4, { kind: "mode" }) })).toHaveLength(2);
});

describe("jobs", () => {
  test("a state replaces the job; a new job joins the list", () => {
    const jobs = [job(), job({ name: "mnist" })];
    const done = job({ state: "done" });
    expect(mergeJobs(jobs, { kind: "job", job: "digits", value: done })).toEqual([done, jobs[1]]);
    expect(mergeJobs(jobs, { kind: "job", job: "new", value: job({ name: "new" }) })).toHaveLength(3);
    expect(mergeJobs(jobs, { kind: "traffic", job: "gone", up_bytes: 1, down_bytes: 1 })).toBe(jobs);
  });

  test("traffic only grows", () => {
    const before = job({ up_bytes: 500, down_bytes: 700 });
    expect(mergeJob(before, { kind: "traffic", job: "digits", up_bytes: 400, down_bytes: 900 })).toMatchObject({
      up_bytes: 500,
      down_bytes: 900,
    });
    expect(mergeJob(before, { kind: "traffic", job: "digits", up_bytes: 500, down_bytes: 600 })).toBe(before);
  });

  test("the newest version's metrics are the job's, an older one's are not", () => {
    const before = job({ version: 3, metrics: { "train/loss": 1 }, best: { accuracy: 0.8, version: 2 } });
    const after = mergeJob(before, { kind: "metrics", job: "digits", number: 3, metrics: { "eval/accuracy": 0.7 } });
    expect(after.metrics).toEqual({ "train/loss": 1, "eval/accuracy": 0.7 });
    expect(after.best).toEqual({ accuracy: 0.8, version: 2 });
    expect(mergeJob(before, { kind: "metrics", job: "digits", number: 2, metrics: { "eval/accuracy": 0.7 } })).toBe(
      before,
    );
  });

  test("a better accuracy is the best, a diverged one is not", () => {
    const before = job({ version: 3, best: { accuracy: 0.8, version: 2, nodes: 3 } });
    const deltas = (value: number, more = {}) => ({
      kind: "metrics" as const,
      job: "digits",
      number: 1,
      metrics: { "eval/accuracy": value, ...more },
    });
    expect(mergeJob(before, deltas(0.9))).toEqual({ ...before, best: { accuracy: 0.9, version: 1, nodes: null } });
    expect(mergeJob(before, deltas(0.9, { "eval/nodes": 1 })).best).toEqual({ accuracy: 0.9, version: 1, nodes: 1 });
    expect(mergeJob(before, deltas(NaN))).toBe(before);
    expect(mergeJob(job({ best: null }), deltas(0.1)).best).toEqual({ accuracy: 0.1, version: 1, nodes: null });
  });
});

describe("notes", () => {
  const merge = mergeNotes("digits");

  test("stand in the order of their ids, each once", () => {
    const one = merge([note(1), note(4)], { kind: "note", job: "digits", note: note(3) });
    expect(one.map((n) => n.id)).toEqual([1, 3, 4]);
    expect(merge(one, { kind: "note", job: "digits", note: note(3) })).toBe(one);
  });

  test("are bounded, and the oldest go first", () => {
    const full = Array.from({ length: NOTES_MAX }, (_, id) => note(id));
    const after = merge(full, { kind: "note", job: "digits", note: note(NOTES_MAX) });
    expect(after).toHaveLength(NOTES_MAX);
    expect(after[0]?.id).toBe(1);
  });
});

test("nodes that changed replace themselves by name, others stay the very same", () => {
  const ada = node("ada");
  const merged = mergeNodes("digits")([ada, node("bohr")], {
    kind: "nodes",
    job: "digits",
    nodes: [node("bohr", { reports: 5 }), node("new")],
  });
  expect(merged.map((n) => [n.name, n.reports])).toEqual([
    ["ada", 0],
    ["bohr", 5],
    ["new", 0],
  ]);
  expect(merged[0]).toBe(ada);
});

test("peers are replaced one by one, and a new point lengthens their history", () => {
  const known = { roster: 1, peers: [peer("a"), peer("b")], now: null, history: [point(0)] };
  const delta: Delta = { kind: "peers", job: "digits", roster: 2, peers: [peerNews("b", { round: 11 })], now: point(5) };
  const merged = mergePeers("digits")(known, delta);
  expect(merged.roster).toBe(2);
  expect(merged.peers[0]).toBe(known.peers[0]);
  expect(merged.peers[1]?.round).toBe(11);
  expect(merged.history.map(({ at }) => at)).toEqual([point(0).at, point(5).at]);
  const again = mergePeers("digits")(merged, delta);
  expect(again.history).toBe(merged.history);
  expect(mergePeers("digits")(merged, { ...delta, now: null })).toMatchObject({ now: null, history: merged.history });
  expect(mergePeers("other")(known, delta)).toBe(known);
});

test("of a peer that tells partly, the rest stays as it was", () => {
  const before = peer("a", { seen: new Map([["a", 9], ["b", 8]]), contacts: new Map([["b", contact()]]) });
  const known = { roster: 1, peers: [before], now: null, history: [] };
  const told = peer("a", { round: 10, seen: new Map([["a", 10]]), contacts: new Map([["c", contact({ exchanges: 1 })]]) });
  const delta = { kind: "peers", job: "digits", roster: 1, now: null } as const;
  const [joined] = mergePeers("digits")(known, { ...delta, peers: [{ ...told, partial: true }] }).peers;
  expect(joined).toEqual({
    ...told,
    seen: new Map([["a", 10], ["b", 8]]),
    contacts: new Map([["b", contact()], ["c", contact({ exchanges: 1 })]]),
  });
  const [whole] = mergePeers("digits")(known, { ...delta, peers: [{ ...told, partial: false }] }).peers;
  expect(whole).toEqual(told);
});

test("a tab keeps no longer a history than the coordinator", () => {
  const history = Array.from({ length: POINTS_MAX }, (_, second) => point(second));
  const delta: Delta = { kind: "peers", job: "digits", roster: 1, peers: [], now: point(POINTS_MAX) };
  const merged = mergePeers("digits")({ roster: 1, peers: [], now: null, history }, delta);
  expect(merged.history).toHaveLength(POINTS_MAX);
  expect(merged.history.at(-1)).toEqual(point(POINTS_MAX));
});
