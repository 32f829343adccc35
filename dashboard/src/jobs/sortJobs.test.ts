import { expect, test } from "vitest";
import { job } from "../test/factories";
import { countStates, byActivity, sortJobs } from "./sortJobs";
import { elapsed, secondsLeft } from "../domain/job";

test("jobs under way stand before those that ended, the most recent first", () => {
  const jobs = [
    job({ name: "old", state: "done", ended_at: "2026-11-20T00:00:00Z" }),
    job({ name: "early", started_at: "2026-11-21T01:00:00Z" }),
    job({ name: "recent", state: "failed", ended_at: "2026-11-21T05:00:00Z" }),
    job({ name: "late", state: "waiting", started_at: null, created_at: "2026-11-21T03:00:00Z" }),
  ];
  expect(byActivity(jobs).map((each) => each.name)).toEqual(["late", "early", "recent", "old"]);
});

test("the time left counts down, and is not given where it means nothing", () => {
  expect(secondsLeft(job({ eta_at: 90_000 }), 60_000)).toBe(30);
  expect(secondsLeft(job({ eta_at: 90_000 }), 120_000)).toBe(0);
  expect(secondsLeft(job({ eta_at: null }), 0)).toBeNull();
  expect(secondsLeft(job({ eta_at: 90_000, state: "paused" }), 0)).toBeNull();
  expect(secondsLeft(job({ eta_at: 90_000, state: "done" }), 0)).toBeNull();
});

test("the elapsed time ends with the job", () => {
  const now = Date.parse("2026-11-21T08:01:00Z");
  expect(elapsed(job(), now)).toBe(50);
  expect(elapsed(job({ ended_at: "2026-11-21T08:00:30Z" }), now)).toBe(20);
  expect(elapsed(job({ started_at: null }), now)).toBeNull();
});

test("only states that occur are counted", () => {
  expect(countStates([job(), job({ state: "done" }), job()])).toEqual([
    ["running", 2],
    ["done", 1],
  ]);
});

test("jobs are put in the order of a column, either way, and what has no figure comes last", () => {
  const jobs = [
    job({ name: "b", progress: 0.5, best: null, up_bytes: 1 }),
    job({ name: "a10", progress: 0.1, best: { accuracy: 0.7, version: 1, nodes: null }, up_bytes: 3 }),
    job({ name: "a9", progress: 0.9, best: { accuracy: 0.9, version: 1, nodes: null }, up_bytes: 2 }),
  ].map((one) => ({ ...one, title: "" }));
  const order = (...how: [Parameters<typeof sortJobs>[1], boolean?]) =>
    sortJobs(jobs, how[0], how[1] ?? false, 0).map(({ name }) => name);
  expect(order("name")).toEqual(["a9", "a10", "b"]);
  expect(order("name", true)).toEqual(["b", "a10", "a9"]);
  expect(order("up")).toEqual(["a10", "a9", "b"]);
  expect(order("best")).toEqual(["a9", "a10", "b"]);
  expect(order("best", true)).toEqual(["a10", "a9", "b"]);
});
