import { expect, test } from "vitest";
import { version } from "../test/make";
import { best, colourOf, kindsIn, latest, namesIn, namesOf, pick, toldTogether, wordsFor } from "./metric";

test("the most telling name comes first, whatever order they arrive in", () => {
  const all = ["train/loss", "a_ward/accuracy", "held_out/accuracy", "eval/loss", "eval/accuracy"];
  expect(namesOf("accuracy", all)).toEqual(["held_out/accuracy", "eval/accuracy", "a_ward/accuracy"]);
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

test("all figures of a legend are of one version, the newest of those of which most is known", () => {
  const both = { "eval/loss": 1, "held_out/loss": 2, "train/loss": 3 };
  const names = ["held_out/loss", "eval/loss", "train/loss"];
  const told = (...more: Record<string, number>[]) => toldTogether(names, [version(0, both), ...more.map((m, i) => version(i + 1, m))]);
  expect(told({ "held_out/loss": 2 })?.number).toBe(0);
  expect(told({ "held_out/loss": 2, "eval/loss": 1 })?.number).toBe(1); // nobody trains on the last version
  expect(told({})?.number).toBe(0);
  expect(toldTogether(["train/loss"], [version(0, both), version(1)])?.number).toBe(0);
  expect(toldTogether(names, [version(0)])).toBeUndefined();
});

test("every kind of metric that was reported can be chosen", () => {
  const versions = [version(0, { "eval/perplexity": 9, "eval/accuracy": 1 }), version(1, { "train/grad_norm": 2, loss: 1 })];
  expect(kindsIn(versions)).toEqual(["accuracy", "loss", "grad_norm", "perplexity"]);
  expect(kindsIn([])).toEqual(["accuracy", "loss"]);
});
