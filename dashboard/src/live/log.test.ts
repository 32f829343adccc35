import { expect, test } from "vitest";
import type { Delta } from "./delta";
import { DeltaLog } from "./log";

const delta = (up_bytes: number): Delta => ({ kind: "traffic", job: "digits", up_bytes, down_bytes: 0 });
const collect = (seen: number[], next: Delta) => (next.kind === "traffic" ? [...seen, next.up_bytes] : seen);

test("a snapshot is brought up to date by what arrived while it was on its way, and by nothing else", async () => {
  const log = new DeltaLog();
  log.push(delta(1));
  let answer: (value: number[]) => void = () => undefined;
  const snapshot = log.snapshot(() => new Promise<number[]>((resolve) => (answer = resolve)), collect);
  log.push(delta(2));
  log.push(delta(3));
  answer([]);
  expect(await snapshot).toEqual([2, 3]);
});

test("a long log forgets its beginning but not what a snapshot needs", async () => {
  const log = new DeltaLog();
  for (let index = 0; index < 7_990; index++) log.push(delta(index));
  const snapshot = log.snapshot(async () => {
    for (let index = 0; index < 100; index++) log.push(delta(-index));
    return [] as number[];
  }, collect);
  const seen = await snapshot;
  expect(seen).toHaveLength(100);
  expect(seen.at(-1)).toBe(-99);
});
