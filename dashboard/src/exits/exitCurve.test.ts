import { expect, test } from "vitest";
import { version } from "../test/factories";
import { newestExitCurve } from "./exitCurve";

test("the curve is that of the newest version with one, and the cloud answers the rest", () => {
  const versions = [
    version(1, { "eval/accuracy@0.0": 0.1 }),
    version(2, {
      "eval/accuracy": 0.8,
      "eval/accuracy@0.0": 0.9,
      "eval/answered_device@0.0": 0,
      "eval/answered_edge@0.0": 0.25,
      "eval/accuracy@1.0": 0.7,
      "eval/answered_device@1.0": 1,
      "eval/answered_edge@1.0": 0,
    }),
    version(3, { "eval/accuracy": 0.8 }),
  ];
  expect(newestExitCurve(versions)).toEqual({
    version: 2,
    thresholds: [0, 1],
    accuracy: [0.9, 0.7],
    levels: [
      { name: "device", fractions: [0, 1] },
      { name: "edge", fractions: [0.25, 0] },
      { name: "cloud", fractions: [0.75, 0] },
    ],
  });
  expect(newestExitCurve(versions.slice(2))).toBeUndefined();
});
