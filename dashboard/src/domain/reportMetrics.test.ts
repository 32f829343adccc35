import { expect, test } from "vitest";
import { firstOf, titleOf, write } from "./quantity";

test.each([
  ["seconds", 0.25, "250 ms"],
  ["train_s", 75, "1 m 15 s"],
  ["up_bytes", 2500, "2.50 kB"],
  ["eval/accuracy", 0.5, "50.0%"],
  ["staleness", 2, "2"],
  ["staleness", 1.5, "1.50"],
  ["train/loss", NaN, "diverged"],
  ["train/loss", null, "–"],
])("%s of %s is %s", (metric, value, text) => {
  expect(write(metric, value)).toBe(text);
});

test("a metric that a node has named is called as it is", () => {
  expect(titleOf("norm")).toBe("Drift (norm of the update)");
  expect(titleOf("constructor")).toBe("constructor");
});

test("losses come first", () => {
  expect(firstOf(["a", "eval/loss", "seconds"])).toBe("eval/loss");
  expect(firstOf(["seconds"])).toBe("seconds");
});
