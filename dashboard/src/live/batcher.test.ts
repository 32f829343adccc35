import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Batcher, type Priority } from "./batcher";

const priority = (item: string): Priority =>
  item.startsWith("round") ? "version" : item.startsWith("metric") ? "chart" : "normal";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test("the first goes out at once, a flood at most once per interval, and nothing is lost", () => {
  const flushed: number[][] = [];
  const batch = new Batcher<number>((items) => flushed.push(items), 250);
  batch.push(0);
  vi.advanceTimersByTime(0);
  expect(flushed).toEqual([[0]]);
  for (let index = 1; index <= 100; index++) {
    batch.push(index);
    vi.advanceTimersByTime(10);
  }
  vi.advanceTimersByTime(250);
  expect(flushed.length).toBeLessThanOrEqual(6);
  expect(flushed.flat()).toEqual(Array.from({ length: 101 }, (_, index) => index));
});

test("after a quiet time the next goes out at once again", () => {
  const flush = vi.fn();
  const batch = new Batcher<number>(flush, 250);
  batch.push(1);
  vi.advanceTimersByTime(1000);
  batch.push(2);
  vi.advanceTimersByTime(0);
  expect(flush).toHaveBeenLastCalledWith([2]);
});

test("a stopped one hands on nothing", () => {
  const flush = vi.fn();
  const batch = new Batcher<number>(flush, 250);
  batch.push(1);
  batch.stop();
  vi.advanceTimersByTime(1000);
  expect(flush).not.toHaveBeenCalled();
});

test("a round waits for nothing but what was drawn, and overtakes nothing", () => {
  const flushed: string[][] = [];
  const batch = new Batcher<string>((items) => flushed.push(items), 250, priority);
  batch.push("busy");
  vi.advanceTimersByTime(10);
  batch.push("idle");
  batch.push("round 1");
  vi.advanceTimersByTime(0);
  expect(flushed).toEqual([["busy"], ["idle", "round 1"]]);
  batch.push("round 2");
  batch.push("done");
  vi.advanceTimersByTime(240);
  expect(flushed).toHaveLength(2);
  vi.advanceTimersByTime(20);
  expect(flushed[2]).toEqual(["round 2", "done"]);
});

test("small news goes on while a round waits, and no round is drawn more often than it may be", () => {
  const at: [number, string[]][] = [];
  const begun = performance.now();
  const isRound = (item: string) => item === "round";
  const batch = new Batcher<string>((items) => at.push([performance.now() - begun, items]), 250, priority);
  for (let step = 0; step < 100; step++) {
    batch.push(step % 3 === 0 ? "round" : "news");
    vi.advanceTimersByTime(10);
  }
  vi.advanceTimersByTime(500);
  const rounds = at.filter(([, items]) => items.some(isRound)).map(([moment]) => moment);
  for (const [index, moment] of rounds.entries()) if (index > 0) expect(moment - rounds[index - 1]!).toBeGreaterThanOrEqual(249);
  expect(at.flatMap(([, items]) => items)).toHaveLength(100);
  expect(at.length).toBeLessThanOrEqual(12);
});

test("what is measured just before a round closes goes with it; alone it waits an interval", () => {
  const flushed: string[][] = [];
  const batch = new Batcher<string>((items) => flushed.push(items), 250, priority);
  batch.push("metric of n0");
  vi.advanceTimersByTime(40);
  batch.push("round 1");
  vi.advanceTimersByTime(0);
  expect(flushed).toEqual([["metric of n0", "round 1"]]);
  vi.advanceTimersByTime(1000);
  batch.push("metric of n1");
  vi.advanceTimersByTime(200);
  expect(flushed).toHaveLength(1);
  vi.advanceTimersByTime(60);
  expect(flushed[1]).toEqual(["metric of n1"]);
});

test("a round does not wait for what was measured before it", () => {
  const flushed: string[][] = [];
  const batch = new Batcher<string>((items) => flushed.push(items), 250, priority);
  batch.push("metric of n0");
  vi.advanceTimersByTime(260);
  expect(flushed).toEqual([["metric of n0"]]);
  batch.push("round 1");
  vi.advanceTimersByTime(0);
  expect(flushed[1]).toEqual(["round 1"]);
});

test("charts are given four batches a second at most, whatever comes when", () => {
  const at: number[] = [];
  const isDrawn = (items: string[]) => items.some((item) => priority(item) !== "normal");
  const batch = new Batcher<string>((items) => void (isDrawn(items) && at.push(performance.now())), 250, priority);
  for (const quiet of [1000, 600, 300, 0]) {
    vi.advanceTimersByTime(quiet);
    batch.push("metric");
    vi.advanceTimersByTime(255);
    for (let step = 0; step < 120; step++) {
      batch.push(["round", "metric", "busy"][step % 3] as string);
      vi.advanceTimersByTime(10);
    }
  }
  vi.advanceTimersByTime(1000);
  expect(at.length).toBeGreaterThan(15);
  for (const [index, moment] of at.entries()) if (index >= 4) expect(moment - at[index - 4]!).toBeGreaterThanOrEqual(998);
});
