import { expect, test } from "vitest";
import { proseViolations } from "./prose";
import { readSources } from "./sources";

test("comments and labels follow the style rules", () => {
  const found = [...readSources()].flatMap(([path, text]) => proseViolations(text).map((violation) => `${path}: ${violation}`));
  expect(found).toEqual([]);
});

test("a comment that opens with a relative clause is found", () => {
  expect(proseViolations("/** What a byte bought. */")).toEqual(["What a byte bought."]);
  expect(proseViolations("/**\n * Whether it\n * is so.\n */")).toEqual(["Whether it is so."]);
  expect(proseViolations("/** Return whether it is so. */\nconst whose = 1;")).toEqual([]);
});

test("indefinite pronouns and replaced terms are found in comments and labels", () => {
  expect(proseViolations("// until somebody resumes it")).toHaveLength(1);
  expect(proseViolations("<h2>Nobody is training</h2>")).toHaveLength(1);
  expect(proseViolations('<section aria-label="Notes" />')).toHaveLength(1);
  expect(proseViolations("<h2>Events</h2>")).toEqual([]);
});
