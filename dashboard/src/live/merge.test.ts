import { describe, expect, test } from "vitest";
import { event, job, link, node, jobEvent, peer, peerUpdate, point, version } from "../test/factories";
import type { ProvisionalAccuracy, Version } from "../api/types";
import {
  mergeJob,
  mergeJobs,
  mergeModeEvents,
  mergeNodes,
  mergeJobEvents,
  mergePeers,
  mergeVersions,
  JOB_EVENTS_MAX,
  POINTS_MAX,
} from "./merge";

describe("versions", () => {
  const merge = mergeVersions("digits");
  const known = [version(0), version(1, { "train/loss": 1 })];

  test("a new one is appended, whatever was thinned out before it", () => {
    expect(
      merge([version(0), version(8)], event("version", version(9), "digits")).map((v) => v.number),
    ).toEqual([0, 8, 9]);
  });

  test("one that came late goes to its place", () => {
    expect(
      merge([version(0), version(2)], event("version", version(1), "digits")).map((v) => v.number),
    ).toEqual([0, 1, 2]);
  });

  test("a replay changes nothing but keeps the metrics of both", () => {
    const again = version(1, { "eval/loss": 2 });
    const merged = merge(known, event("version", again, "digits"));
    expect(merged).toHaveLength(2);
    expect(merged[1]?.metrics).toEqual({ "train/loss": 1, "eval/loss": 2 });
  });

  test("metrics that come later join their version", () => {
    const merged = merge(known, event("metrics", { number: 1, metrics: { "eval/accuracy": NaN }, provisional: null }));
    expect(merged[1]?.metrics).toEqual({ "train/loss": 1, "eval/accuracy": NaN });
    expect(known[1]?.metrics).toEqual({ "train/loss": 1 });
  });

  test("a run of any length is kept in so many versions, its newest and its peaks among them", () => {
    let versions = [version(0)];
    let longest = 0;
    for (let number = 1; number <= 3000; number++) {
      const loss = number === 1111 ? 99 : 1 / number;
      versions = mergeVersions("digits", 300)(versions, event("version", version(number, { "train/loss": loss }), "digits"));
      longest = Math.max(longest, versions.length);
    }
    expect(longest).toBeLessThanOrEqual(400);
    const numbers = versions.map(({ number }) => number);
    expect(numbers).toEqual(expect.arrayContaining([0, 1111, 2950, 3000]));
  });

  test("what concerns another job or an unknown version leaves the very same list", () => {
    expect(merge(known, event("version", version(2), "other"))).toBe(known);
    expect(merge(known, event("metrics", { number: 7, metrics: {}, provisional: null }))).toBe(known);
    expect(merge(known, event("job_event", jobEvent(1), "digits"))).toBe(known);
  });
});

test("only moves join the moves", () => {
  const merge = mergeModeEvents("digits");
  const known = [jobEvent(3, { kind: "mode" })];
  expect(merge(known, event("job_event", jobEvent(4, { kind: "state" }), "digits"))).toBe(known);
  expect(merge(known, event("job_event", jobEvent(4, { kind: "mode" }), "other"))).toBe(known);
  expect(merge(known, event("job_event", jobEvent(4, { kind: "mode" }), "digits"))).toHaveLength(2);
});

describe("jobs", () => {
  test("a state replaces the job; a new job joins the list", () => {
    const jobs = [job(), job({ name: "mnist" })];
    const done = job({ state: "done" });
    expect(mergeJobs(jobs, event("job", done, "digits"))).toEqual([done, jobs[1]]);
    expect(mergeJobs(jobs, event("job", job({ name: "new" }), "new"))).toHaveLength(3);
    expect(mergeJobs(jobs, event("traffic", { up_bytes: 1, down_bytes: 1 }, "gone"))).toBe(jobs);
  });

  test("traffic only grows", () => {
    const before = job({ up_bytes: 500, down_bytes: 700 });
    expect(mergeJob(before, event("traffic", { up_bytes: 400, down_bytes: 900 }, "digits"))).toMatchObject({
      up_bytes: 500,
      down_bytes: 900,
    });
    expect(mergeJob(before, event("traffic", { up_bytes: 500, down_bytes: 600 }, "digits"))).toBe(before);
  });

  const said = (number: number, metrics: Record<string, number>, provisional: ProvisionalAccuracy | null = null) =>
    event("metrics", { number, metrics, provisional });
  const part = { reported: 1, asked: 4 };

  test("the newest measured version's metrics are the job's, and no other's are among them", () => {
    const before = job({ version: 3, metrics_version: 2, metrics: { "train/loss": 1 } });
    expect(mergeJob(before, said(2, { "eval/accuracy": 0.7 })).metrics).toEqual({ "train/loss": 1, "eval/accuracy": 0.7 });
    const after = mergeJob(before, said(3, { "eval/accuracy": 0.9 }, part));
    expect(after).toMatchObject({ metrics_version: 3, metrics: { "eval/accuracy": 0.9 }, provisional: part });
    expect(after.metrics).not.toHaveProperty("train/loss");
    expect(mergeJob(after, said(2, { "eval/accuracy": 0.7 }))).toBe(after);
  });

  test("an accuracy of those who were first is no best", () => {
    const before = job({ version: 3, best: { accuracy: 0.8, version: 2, nodes: 3 } });
    expect(mergeJob(before, said(3, { "eval/accuracy": 0.98 }, part)).best).toEqual(before.best);
  });

  test("a version is provisional until the next one has closed", () => {
    const merge = mergeVersions("digits");
    const known = merge([version(3)], said(3, { "eval/accuracy": 0.98 }, part));
    expect(known[0]?.provisional).toEqual(part);
    const closed = (versions: Version[]) => merge(versions, event("version", version(4), "digits"));
    expect(closed(known).map((one) => one.provisional)).toEqual([null, null]);
    const few = merge([version(3)], said(3, { "eval/accuracy": 0.98, "eval/asked": 4 }, part));
    expect(closed(few).map((one) => one.provisional)).toEqual([part, null]);
  });
});

describe("job events", () => {
  const merge = mergeJobEvents("digits");

  test("stand in the order of their ids, each once", () => {
    const one = merge([jobEvent(1), jobEvent(4)], event("job_event", jobEvent(3), "digits"));
    expect(one.map((n) => n.id)).toEqual([1, 3, 4]);
    expect(merge(one, event("job_event", jobEvent(3), "digits"))).toBe(one);
  });

  test("are bounded, and the oldest go first", () => {
    const full = Array.from({ length: JOB_EVENTS_MAX }, (_, id) => jobEvent(id));
    const after = merge(full, event("job_event", jobEvent(JOB_EVENTS_MAX), "digits"));
    expect(after).toHaveLength(JOB_EVENTS_MAX);
    expect(after[0]?.id).toBe(1);
  });
});

test("nodes that changed replace themselves by name, others stay the very same", () => {
  const ada = node("ada");
  const merged = mergeNodes("digits")([ada, node("bohr")], event("nodes", [node("bohr", { reports: 5 }), node("new")]));
  expect(merged.map((n) => [n.name, n.reports])).toEqual([
    ["ada", 0],
    ["bohr", 5],
    ["new", 0],
  ]);
  expect(merged[0]).toBe(ada);
});

test("peers are replaced one by one, and a new point lengthens their history", () => {
  const known = { roster: 1, peers: [peer("a"), peer("b")], now: null, history: [point(0)] };
  const update = { roster: 2, peers: [peerUpdate("b", { local_rounds: 11 })], now: point(5) };
  const merged = mergePeers("digits")(known, event("peers", update));
  expect(merged.roster).toBe(2);
  expect(merged.peers[0]).toBe(known.peers[0]);
  expect(merged.peers[1]?.local_rounds).toBe(11);
  expect(merged.history.map(({ at }) => at)).toEqual([point(0).at, point(5).at]);
  const again = mergePeers("digits")(merged, event("peers", update));
  expect(again.history).toBe(merged.history);
  expect(mergePeers("digits")(merged, event("peers", { ...update, now: null }))).toMatchObject({ now: null, history: merged.history });
  expect(mergePeers("other")(known, event("peers", update))).toBe(known);
});

test("of a peer that tells partly, the rest stays as it was", () => {
  const before = peer("a", { rounds_by_peer: new Map([["a", 9], ["b", 8]]), links: new Map([["b", link()]]) });
  const known = { roster: 1, peers: [before], now: null, history: [] };
  const told = peer("a", { local_rounds: 10, rounds_by_peer: new Map([["a", 10]]), links: new Map([["c", link({ exchanges: 1 })]]) });
  const merge = (partial: boolean) =>
    mergePeers("digits")(known, event("peers", { roster: 1, peers: [{ ...told, partial }], now: null })).peers[0];
  expect(merge(true)).toEqual({
    ...told,
    rounds_by_peer: new Map([["a", 10], ["b", 8]]),
    links: new Map([["b", link()], ["c", link({ exchanges: 1 })]]),
  });
  expect(merge(false)).toEqual(told);
});

test("a tab keeps no longer a history than the coordinator", () => {
  const history = Array.from({ length: POINTS_MAX }, (_, second) => point(second));
  const update = { roster: 1, peers: [], now: point(POINTS_MAX) };
  const merged = mergePeers("digits")({ roster: 1, peers: [], now: null, history }, event("peers", update));
  expect(merged.history).toHaveLength(POINTS_MAX);
  expect(merged.history.at(-1)).toEqual(point(POINTS_MAX));
});
