import { expect, test } from "vitest";
import { flatten } from "./flatten";

test("nested settings become dotted names; what is not set is left out", () => {
  const spec = {
    name: "digits",
    schedule: { kind: "rounds", deadline_s: 30, quorum: null },
    tags: ["a", 1],
    words: ["22:00-06:00", "eu"],
    fast: true,
  };
  expect(flatten(spec)).toEqual([
    ["name", "digits"],
    ["schedule.kind", "rounds"],
    ["schedule.deadline_s", "30"],
    ["tags", '["a",1]'],
    ["words", "22:00-06:00, eu"],
    ["fast", "true"],
  ]);
});
