import { expect, test } from "vitest";
import type { ClientInRound, Round } from "../api/types";
import { layOutRound } from "./timeline";

const none = { wait_s: null, download_s: null, train_s: null, upload_s: null, fold_s: null };
const client = (node: string, rest: Partial<ClientInRound>): ClientInRound => ({
  node,
  task: "1.1",
  start_s: 0,
  end_s: null,
  staleness: 0,
  phases: none,
  ...rest,
});
const round = (clients: ClientInRound[], rest: Partial<Round> = {}): Round => ({
  round: 1,
  state: "closed",
  why: "",
  opened_at: null,
  seconds: 10,
  asked: 2,
  quorum: 1,
  quorum_s: 4,
  deadline_s: 12.5,
  clients,
  next: null,
  ...rest,
});

test("phases follow each other on the round's scale, and the marks stand on it", () => {
  const phases = { wait_s: 1, download_s: 0, train_s: 3, upload_s: 1, fold_s: 0 };
  const found = layOutRound(round([client("a", { end_s: 5, phases })]));
  expect(found.to).toBe(12.5);
  expect(found.bars[0]?.segments.map(({ phase, from, width }) => [phase, Math.round(from * 1250), Math.round(width * 1250)])).toEqual([
    ["wait", 0, 100],
    ["train", 100, 300],
    ["upload", 400, 100],
  ]);
  expect([found.quorum, found.deadline]).toEqual([0.32, 1]);
});

test("a deadline that is far away is left out of the picture", () => {
  const found = layOutRound(round([], { deadline_s: 3600 }));
  expect([found.to, found.deadline]).toEqual([10, null]);
});

test("work that began before the round begins left of it", () => {
  const phases = { ...none, train_s: 8 };
  const found = layOutRound(round([client("a", { start_s: -5, end_s: 3, phases })], { deadline_s: null }));
  expect(found.from).toBe(-5);
  expect(found.bars[0]?.segments[0]?.from).toBe(0);
});

test("of what came before a restart only the end is known", () => {
  const found = layOutRound(round([client("a", { start_s: null, end_s: 10, phases: { ...none, upload_s: 2 } })], { deadline_s: null }));
  expect(found.bars[0]?.segments).toEqual([{ phase: "upload", seconds: 2, from: 0.8, width: expect.closeTo(0.2) }]);
});
