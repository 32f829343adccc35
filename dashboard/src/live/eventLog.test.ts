import { expect, test } from "vitest";
import { event } from "../test/factories";
import type { LiveEvent } from "./events";
import { EventLog } from "./eventLog";

const traffic = (up_bytes: number) => event("traffic", { up_bytes, down_bytes: 0 });
const collect = (seen: number[], next: LiveEvent) => (next.type === "traffic" ? [...seen, next.data.up_bytes] : seen);

test("a snapshot is brought up to date by what arrived while it was on its way, and by nothing else", async () => {
  const log = new EventLog();
  log.push(traffic(1));
  let answer: (value: number[]) => void = () => undefined;
  const snapshot = log.snapshot(() => new Promise<number[]>((resolve) => (answer = resolve)), collect);
  log.push(traffic(2));
  log.push(traffic(3));
  answer([]);
  expect(await snapshot).toEqual([2, 3]);
});

test("a long log forgets its beginning but not what a snapshot needs", async () => {
  const log = new EventLog();
  for (let index = 0; index < 7_990; index++) log.push(traffic(index));
  const snapshot = log.snapshot(async () => {
    for (let index = 0; index < 100; index++) log.push(traffic(-index));
    return [] as number[];
  }, collect);
  const seen = await snapshot;
  expect(seen).toHaveLength(100);
  expect(seen.at(-1)).toBe(-99);
});

test("while a stream is being opened a snapshot waits, and is fetched once", async () => {
  const log = new EventLog(60_000);
  log.opening();
  let fetches = 0;
  const snapshot = log.snapshot(async () => [++fetches], collect);
  await Promise.resolve();
  expect(fetches).toBe(0);
  log.started();
  expect(await snapshot).toEqual([1]);
});

test("what was fetched while a stream began may have missed something, and is fetched again", async () => {
  const log = new EventLog();
  let fetches = 0;
  const snapshot = log.snapshot(async () => {
    fetches += 1;
    if (fetches === 1) log.started();
    return [fetches];
  }, collect);
  expect(await snapshot).toEqual([2]);
});

test("where no stream can be had, a snapshot is fetched without one", async () => {
  const log = new EventLog(0);
  log.opening();
  expect(await log.snapshot(async () => [7], collect)).toEqual([7]);
  const patient = new EventLog(60_000);
  patient.opening();
  patient.failed();
  expect(await patient.snapshot(async () => [8], collect)).toEqual([8]);
});
