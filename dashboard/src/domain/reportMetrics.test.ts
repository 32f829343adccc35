import { expect, test } from "vitest";
import { defaultMetric, reportMetricTitle, formatReportMetric, reportChartTitle } from "./reportMetrics";

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
  expect(formatReportMetric(metric, value)).toBe(text);
});

test("a metric that a node has named is called as it is", () => {
  expect(reportMetricTitle("norm")).toBe("Update norm");
  expect(reportMetricTitle("constructor")).toBe("constructor");
});

test("losses come first", () => {
  expect(defaultMetric(["a", "eval/loss", "seconds"])).toBe("eval/loss");
  expect(defaultMetric(["seconds"])).toBe("seconds");
});

test("a chart's title has the unit of its metric", () => {
  expect(["train_s", "seconds", "up_bytes", "staleness", "eval/accuracy", "train/loss"].map(reportChartTitle)).toEqual([
    "Training (s)",
    "Report duration (s)",
    "Bytes up",
    "Staleness (versions)",
    "eval/accuracy (%)",
    "train/loss",
  ]);
});
