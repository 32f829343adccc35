import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Batcher } from "./batch";

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
