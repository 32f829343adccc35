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

test("while a stream is being opened a snapshot waits, and is fetched once", async () => {
  const log = new DeltaLog(60_000);
  log.opening();
  let fetches = 0;
  const snapshot = log.snapshot(async () => [++fetches], collect);
  await Promise.resolve();
  expect(fetches).toBe(0);
  log.began();
  expect(await snapshot).toEqual([1]);
});

test("what was fetched while a stream began may have missed something, and is fetched again", async () => {
  const log = new DeltaLog();
  let fetches = 0;
  const snapshot = log.snapshot(async () => {
    fetches += 1;
    if (fetches === 1) log.began();
    return [fetches];
  }, collect);
  expect(await snapshot).toEqual([2]);
});

test("where no stream can be had, a snapshot is fetched without one", async () => {
  const log = new DeltaLog(0);
  log.opening();
  expect(await log.snapshot(async () => [7], collect)).toEqual([7]);
  const patient = new DeltaLog(60_000);
  patient.opening();
  patient.failed();
  expect(await patient.snapshot(async () => [8], collect)).toEqual([8]);
});
