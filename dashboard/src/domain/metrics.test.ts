import { expect, test } from "vitest";
import { version } from "../test/factories";
import { bestMetric, seriesIndex, metricKindsIn, latestMetric, metricNamesIn, metricNames, pickMetric, latestComparableVersion, metricLabel, metricTitle } from "./metrics";

test("the most telling name comes first, whatever order they arrive in", () => {
  const all = ["train/loss", "a_ward/accuracy", "held_out/accuracy", "eval/loss", "eval/accuracy"];
  expect(metricNames("accuracy", all)).toEqual(["held_out/accuracy", "eval/accuracy", "a_ward/accuracy"]);
  expect(metricNames("loss", all)).toEqual(["eval/loss", "train/loss"]);
  expect(metricNames("loss", ["eval/gloss"])).toEqual([]);
});

test("the count of another metric is no metric of its own", () => {
  const all = ["eval/auc", "eval/auc/nodes", "eval/auc/examples", "eval/examples"];
  expect(metricNames("examples", all)).toEqual(["eval/examples"]);
  expect(metricNames("nodes", all)).toEqual([]);
  expect(metricNames("nodes", ["eval/lonely/nodes"])).toEqual(["eval/lonely/nodes"]);
});

test("names are gathered over all versions", () => {
  expect(metricNamesIn("loss", [version(0, { "eval/loss": 2 }), version(1, { "train/loss": 1 })])).toEqual([
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
  expect(latestMetric("accuracy", versions)).toEqual({ value: 0.6, version: 1 });
  expect(latestMetric("accuracy", [])).toBeUndefined();
});

test("a diverged figure is the latest, and never the best", () => {
  const versions = [version(0, { "eval/loss": 2 }), version(1, { "eval/loss": 1 }), version(2, { "eval/loss": NaN })];
  expect(latestMetric("loss", versions)?.value).toBeNaN();
  expect(bestMetric("loss", versions)).toEqual({ value: 1, version: 1 });
  expect(bestMetric("loss", [version(0, { "eval/loss": -Infinity })])).toBeUndefined();
});

test("the best accuracy is the highest, and the first of equals", () => {
  const versions = [0.5, 0.9, 0.9, 0.8].map((value, number) => version(number, { "eval/accuracy": value }));
  expect(bestMetric("accuracy", versions)).toEqual({ value: 0.9, version: 1 });
});

test("a node's figure prefers its evaluation to its training", () => {
  expect(pickMetric("loss", { "train/loss": 3, "eval/loss": 2 })).toBe(2);
  expect(pickMetric("loss", { "train/loss": 3 })).toBe(3);
  expect(pickMetric("accuracy", { "train/loss": 3 })).toBeUndefined();
});

test("a color belongs to a name", () => {
  expect(["eval/loss", "held_out/loss", "train/loss", "ward7/loss"].map(seriesIndex)).toEqual([0, 1, 2, 3]);
});

test("a metric of the user's own keeps its name", () => {
  expect(metricLabel("held_out/accuracy")).toBe("held out");
  expect(metricLabel("ward7/accuracy")).toBe("ward7/accuracy");
});

test("all figures of a legend are of one version, the newest of those of which most is known", () => {
  const both = { "eval/loss": 1, "held_out/loss": 2, "train/loss": 3 };
  const names = ["held_out/loss", "eval/loss", "train/loss"];
  const told = (...more: Record<string, number>[]) => latestComparableVersion(names, [version(0, both), ...more.map((m, i) => version(i + 1, m))]);
  expect(told({ "held_out/loss": 2 })?.number).toBe(0);
  expect(told({ "held_out/loss": 2, "eval/loss": 1 })?.number).toBe(1); // nobody trains on the last version
  expect(told({})?.number).toBe(0);
  expect(latestComparableVersion(["train/loss"], [version(0, both), version(1)])?.number).toBe(0);
  expect(latestComparableVersion(names, [version(0)])).toBeUndefined();
});

test("every kind of metric that was reported can be chosen", () => {
  const versions = [version(0, { "eval/perplexity": 9, "eval/accuracy": 1 }), version(1, { "train/grad_norm": 2, loss: 1 })];
  expect(metricKindsIn(versions)).toEqual(["accuracy", "loss", "grad_norm", "perplexity"]);
  expect(metricKindsIn([])).toEqual(["accuracy", "loss"]);
  const points = { "eval/accuracy@0.3": 1, "eval/answered_device@1.0": 1 }; // of a curve of exits
  expect(metricKindsIn([version(0, { ...points, "eval/recall@10": 1, "eval/map@0.5": 1 })])).toEqual(["accuracy", "loss", "map@0.5", "recall@10"]);
});

test("a title says which data a metric was measured on, and its unit", () => {
  expect(metricTitle("accuracy", ["held_out/accuracy"])).toBe("Accuracy on held-out data (%)");
  expect(metricTitle("accuracy", ["eval/accuracy", "held_out/accuracy"])).toBe("Accuracy (%)");
  expect(metricTitle("mean_error", ["train/mean_error"])).toBe("Mean error in training");
  expect(metricTitle("loss", [])).toBe("Loss");
});
