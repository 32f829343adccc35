import { expect, test } from "vitest";
import type { JobEventKind } from "../api/types";
import { jobEvent } from "../test/factories";
import { groupEvents } from "./groupEvents";

const jobEvents = (...kinds: JobEventKind[]) => kinds.map((kind, index) => jobEvent(index + 1, { kind }));
const ids = (groups: { id: number }[][]) => groups.map((row) => row.map(({ id }) => id));

test("routine decisions are folded under the newest of them, and what happened between them is not", () => {
  const { urgent, groups } = groupEvents(jobEvents("decision", "decision", "decision", "node", "decision", "decision", "state"), "all");
  expect(urgent).toEqual([]);
  expect(ids(groups)).toEqual([[7], [6], [5], [4], [3, 2, 1]]);
});

test("the latest warnings and refusals stand above all else, each once", () => {
  const { urgent, groups } = groupEvents(jobEvents("warning", "refusal", "decision", "warning", "warning", "node"), "all");
  expect(urgent.map(({ id }) => id)).toEqual([5, 4, 2]);
  expect(ids(groups)).toEqual([[6], [3], [1]]);
});

test("a kind that was chosen is shown whole", () => {
  const { urgent, groups } = groupEvents(jobEvents("decision", "warning", "decision", "decision", "decision"), "decision");
  expect(urgent).toEqual([]);
  expect(ids(groups)).toEqual([[5], [4], [3], [1]]);
});
