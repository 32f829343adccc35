import { expect, test } from "vitest";
import type { NoteKind } from "../api/types";
import { note } from "../test/make";
import { arrange } from "./arrange";

const notes = (...kinds: NoteKind[]) => kinds.map((kind, index) => note(index + 1, { kind }));
const ids = (rows: { id: number }[][]) => rows.map((row) => row.map(({ id }) => id));

test("routine decisions are folded under the newest of them, and what happened between them is not", () => {
  const { urgent, rows } = arrange(notes("decision", "decision", "decision", "node", "decision", "decision", "state"), "all");
  expect(urgent).toEqual([]);
  expect(ids(rows)).toEqual([[7], [6], [5], [4], [3, 2, 1]]);
});

test("the latest warnings and refusals stand above all else, each once", () => {
  const { urgent, rows } = arrange(notes("warning", "refusal", "decision", "warning", "warning", "node"), "all");
  expect(urgent.map(({ id }) => id)).toEqual([5, 4, 2]);
  expect(ids(rows)).toEqual([[6], [3], [1]]);
});

test("a kind that was chosen is shown whole", () => {
  const { urgent, rows } = arrange(notes("decision", "warning", "decision", "decision", "decision"), "decision");
  expect(urgent).toEqual([]);
  expect(ids(rows)).toEqual([[5], [4], [3], [1]]);
});
