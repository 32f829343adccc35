import { expect, test } from "vitest";
import { peer } from "../test/factories";
import { coverage, LEVELS, level, levelPaths, share } from "./coverage";

const a = peer("a", { local_rounds: 4, rounds_by_peer: new Map([["a", 3], ["b", 5]]) });
const b = peer("b", { local_rounds: 10, rounds_by_peer: new Map([["a", 2]]) });

test("each row tells how many rounds of each peer its model holds, its own included", () => {
  const found = coverage([a, b, peer("c", { local_rounds: null })]);
  expect(found).toEqual({ names: ["a", "b"], rounds: [4, 10], held: [[4, 5], [2, 10]] });
  expect([share(found, 0, 0), share(found, 0, 1), share(found, 1, 0)]).toEqual([1, 0.5, 0.5]);
});

test("rows are in the order of their numbers", () => {
  expect(coverage(["n10", "n9", "n1"].map((name) => peer(name))).names).toEqual(["n1", "n9", "n10"]);
});

test("where there are no rounds, none are missing", () => {
  const found = coverage([peer("a", { local_rounds: 0 }), peer("b", { local_rounds: 0 })]);
  expect(share(found, 0, 1)).toBeNull();
  expect(levelPaths(found, 10, 1).join("")).toBe("");
});

test("only all of them have the highest level", () => {
  expect([0, 0.24, 0.25, 0.999, 1].map(level)).toEqual([0, 0, 1, LEVELS - 2, LEVELS - 1]);
});

test("a cell stands in its row and column", () => {
  const drawn = levelPaths(coverage([a, b]), 10, 1);
  expect(drawn[LEVELS - 1]).toBe("M0 0h9v9h-9ZM10 10h9v9h-9Z");
  expect(drawn[2]).toBe("M10 0h9v9h-9ZM0 10h9v9h-9Z");
});
