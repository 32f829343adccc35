import { expect, test } from "vitest";
import { version } from "../test/make";
import { best, colourOf, latest, namesIn, namesOf, pick, wordsFor } from "./metric";

test("the most telling name comes first, whatever order they arrive in", () => {
  const all = ["train/loss", "a_ward/accuracy", "held_out/accuracy", "eval/loss", "eval/accuracy"];
  expect(namesOf("accuracy", all)).toEqual(["eval/accuracy", "held_out/accuracy", "a_ward/accuracy"]);
  expect(namesOf("loss", all)).toEqual(["eval/loss", "train/loss"]);
  expect(namesOf("loss", ["eval/gloss"])).toEqual([]);
});

test("names are gathered over all versions", () => {
  expect(namesIn("loss", [version(0, { "eval/loss": 2 }), version(1, { "train/loss": 1 })])).toEqual([
    "eval/loss",
    "train/loss",
  ]);
});

test("the latest figure is that of the newest version that has one", () => {
  const versions = [
    version(0, { "eval/accuracy": 0.1 }),
    version(1, { "eval/accuracy": 0.6 }),
    version(2, { "train/loss": 1 }),
  ];
  expect(latest("accuracy", versions)).toEqual({ value: 0.6, version: 1 });
  expect(latest("accuracy", [])).toBeUndefined();
});

test("a diverged figure is the latest, and never the best", () => {
  const versions = [version(0, { "eval/loss": 2 }), version(1, { "eval/loss": 1 }), version(2, { "eval/loss": NaN })];
  expect(latest("loss", versions)?.value).toBeNaN();
  expect(best("loss", versions)).toEqual({ value: 1, version: 1 });
  expect(best("loss", [version(0, { "eval/loss": -Infinity })])).toBeUndefined();
});

test("the best accuracy is the highest, and the first of equals", () => {
  const versions = [0.5, 0.9, 0.9, 0.8].map((value, number) => version(number, { "eval/accuracy": value }));
  expect(best("accuracy", versions)).toEqual({ value: 0.9, version: 1 });
});

test("a node's figure prefers its evaluation to its training", () => {
  expect(pick("loss", { "train/loss": 3, "eval/loss": 2 })).toBe(2);
  expect(pick("loss", { "train/loss": 3 })).toBe(3);
  expect(pick("accuracy", { "train/loss": 3 })).toBeUndefined();
});

test("a colour belongs to a name", () => {
  expect(["eval/loss", "held_out/loss", "train/loss", "ward7/loss"].map(colourOf)).toEqual([0, 1, 2, 3]);
});

test("a metric of the user's own keeps its name", () => {
  expect(wordsFor("held_out/accuracy")).toBe("held out");
  expect(wordsFor("ward7/accuracy")).toBe("ward7/accuracy");
});
