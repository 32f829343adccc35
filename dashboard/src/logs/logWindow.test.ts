import { expect, test } from "vitest";
import type { LogLine } from "../api/types";
import { LogPager, PAGE, type PageRequest } from "./logPager";
import { append, matchPosition, EMPTY, nextMatch, splitMatches, lineIndex, prepend } from "./logWindow";
import { visibleRange } from "../ui/useVirtualRows";

const line = (id: number): LogLine => ({
  id,
  at: "2026-01-02T03:04:05.000Z",
  node: "ada",
  job: "",
  round: null,
  level: "info",
  text: `line ${id}`,
  fields: {},
});
const range = (from: number, to: number) => Array.from({ length: to - from }, (_, index) => line(from + index));
const ids = (lines: readonly LogLine[]) => lines.map(({ id }) => id);

test("newer lines follow, each once, and the oldest give way", () => {
  const known = append(EMPTY, range(1, 4));
  expect(ids(append(known, range(3, 6)).lines)).toEqual([1, 2, 3, 4, 5]);
  expect(append(known, range(1, 4))).toBe(known);
  const full = append(known, range(4, 8), 5);
  expect(ids(full.lines)).toEqual([3, 4, 5, 6, 7]);
  expect(full.older).toBe(true);
});

test("older lines stand before, as many as there is room for", () => {
  const known = { lines: range(5, 8), older: true };
  expect(ids(prepend(known, range(3, 6), false).lines)).toEqual([3, 4, 5, 6, 7]);
  expect(prepend(known, range(3, 5), false).older).toBe(false);
  const full = prepend(known, range(1, 5), false, 5);
  expect(ids(full.lines)).toEqual([3, 4, 5, 6, 7]);
  expect(full.older).toBe(true);
});

test("a line is found among a hundred thousand", () => {
  const lines = range(0, 100_000);
  expect(lineIndex(lines, 77_777)).toBe(77_777);
  expect(lineIndex(lines, 10 ** 9)).toBe(100_000);
  expect(lineIndex([], 3)).toBe(0);
});

test("only what is on the screen is drawn", () => {
  expect(visibleRange(0, 500, 25, 100_000, 10)).toEqual([0, 30]);
  expect(visibleRange(25 * 5000, 500, 25, 100_000, 10)).toEqual([4990, 5030]);
  expect(visibleRange(10 ** 7, 500, 25, 40, 10)).toEqual([40, 40]);
});

test("matches go round, from the newest on", () => {
  const matches = { total: 5, ids: [4, 7, 9] };
  expect(nextMatch(matches, null, 1)).toBe(9);
  expect(nextMatch(matches, 7, 1)).toBe(9);
  expect(nextMatch(matches, 9, 1)).toBe(4);
  expect(nextMatch(matches, 4, -1)).toBe(9);
  expect(nextMatch(matches, 8, -1)).toBe(7);
  expect(nextMatch({ total: 0, ids: [] }, 8, 1)).toBeNull();
  expect(matchPosition(matches, 7)).toBe("4/5");
  expect(matchPosition(matches, 8)).toBe("5");
});

test("what is sought is marked, in capitals or not", () => {
  expect(splitMatches("Loss is a LOSS", "loss")).toEqual(["", "Loss", " is a ", "LOSS", ""]);
  expect(splitMatches("nothing", "loss")).toEqual(["nothing"]);
  expect(splitMatches("x", "")).toEqual(["x"]);
  expect(splitMatches("İstanbul loss", "loss")).toEqual(["İstanbul loss"]);
});

function log(count: number) {
  const state = { count, asked: [] as PageRequest[], fails: false };
  const reader = new LogPager(async (ask) => {
    state.asked.push(ask);
    if (state.fails) throw new Error("gone");
    const all = range(1, state.count + 1);
    if (ask.after !== undefined) return { lines: all.filter(({ id }) => id > ask.after!).slice(0, ask.limit), older: true };
    const before = all.filter(({ id }) => id < (ask.before ?? Infinity));
    return { lines: before.slice(-ask.limit), older: before.length > ask.limit };
  });
  const settled = () => reader.loadUntil(Infinity);
  return { state, reader, settled };
}

test("a log is read from its end, and on", async () => {
  const { state, reader, settled } = log(3 * PAGE);
  reader.loadNewer();
  reader.loadNewer();
  await settled();
  expect(reader.get().window.lines).toHaveLength(PAGE);
  expect(state.asked).toHaveLength(1);
  state.count += PAGE + 5;
  reader.loadNewer();
  await settled();
  expect(reader.get().window.lines).toHaveLength(2 * PAGE + 5);
  await reader.loadOlder();
  expect(reader.get().window.lines[0]?.id).toBe(PAGE + 1);
  await reader.loadUntil(5);
  expect(reader.get().window.lines[0]?.id).toBe(1);
  expect(reader.get().window.older).toBe(false);
});

test("a coordinator that is gone is told, and what was read stays", async () => {
  const { state, reader, settled } = log(5);
  reader.loadNewer();
  await settled();
  state.fails = true;
  reader.loadNewer();
  await settled();
  expect(reader.get().error?.message).toBe("gone");
  expect(reader.get().window.lines).toHaveLength(5);
  state.fails = false;
  reader.loadNewer();
  await settled();
  expect(reader.get().error).toBeNull();
});
