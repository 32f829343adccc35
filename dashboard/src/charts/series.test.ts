import { describe, expect, test } from "vitest";
import { version } from "../test/factories";
import { accuracyRange, buildLines, buildTraffic, divergedSegments, logRange, lossRange, stageStarts } from "./series";

const NAMES = ["eval/loss", "train/loss"];

describe("lines", () => {
  const versions = [
    version(0, { "eval/loss": 2.3 }),
    version(1, { "eval/loss": 1.5, "train/loss": 1.4 }, { elapsed_s: 2.5, total_bytes: 1_000 }),
    version(2, { "train/loss": 1.1 }, { elapsed_s: 6, total_bytes: 1_800 }),
  ];

  test("run along rounds, time or bytes", () => {
    expect(buildLines(versions, NAMES, "round").x).toEqual([0, 1, 2]);
    expect(buildLines(versions, NAMES, "time").x).toEqual([0, 2.5, 6]);
    expect(buildLines(versions, NAMES, "bytes").x).toEqual([0, 1_000, 1_800]);
  });

  test("pass by what was not measured", () => {
    expect(buildLines(versions, NAMES, "round").y).toEqual([
      [2.3, 1.5, undefined],
      [undefined, 1.4, 1.1],
    ]);
  });

  test("never turn back where a clock was set back", () => {
    const back = [
      version(0),
      version(1, {}, { elapsed_s: 9 }),
      version(2, {}, { elapsed_s: 4 }),
      version(3, {}, { elapsed_s: 11 }),
    ];
    expect(buildLines(back, [], "time").x).toEqual([0, 9, 9, 11]);
  });
});

test("a stage begins at its first version that is shown", () => {
  const versions = [0, 0, 1, 1, 2].map((stage, number) => version(number, {}, { numbers: stage === 0 ? {} : { stage } }));
  expect(stageStarts(versions)).toEqual([
    [2, 1],
    [4, 2],
  ]);
  expect(stageStarts(versions.slice(3))).toEqual([[1, 2]]);
});

describe("diverged", () => {
  const versions = [
    version(0, { "eval/loss": 2, "train/loss": 2 }),
    version(1, { "eval/loss": Infinity, "train/loss": 9 }),
    version(2, { "train/loss": NaN }),
    version(3, { "eval/loss": -Infinity }),
    version(4, { "eval/loss": 1, "train/loss": 1 }),
  ];

  test("values become marks of their own, not gaps", () => {
    const lines = buildLines(versions, NAMES, "round");
    expect(lines.y[0]).toEqual([2, null, undefined, null, 1]);
    expect(lines.diverged).toEqual([1, 2, 3]);
  });

  test("a line leaves for its marks and returns, across what was not measured", () => {
    const [evaluated, trained] = buildLines(versions, NAMES, "round").y;
    expect(divergedSegments(evaluated ?? [])).toEqual([
      [0, 1],
      [4, 3],
    ]);
    expect(divergedSegments(trained ?? [])).toEqual([
      [1, 2],
      [4, 2],
    ]);
    expect(divergedSegments([null, null])).toEqual([]);
    expect(divergedSegments([1, undefined, 2])).toEqual([]);
  });
});

test("traffic counts rounds, not the initial model, and draws down below the line", () => {
  expect(buildTraffic([version(0), version(1), version(2, {}, { up_bytes: 7, down_bytes: 9 })])).toEqual({
    x: [1, 2],
    up: [100, 7],
    down: [-120, -9],
  });
});

test("an accuracy axis spans whole tenths", () => {
  expect(accuracyRange(0.12, 0.93)).toEqual([0, 1]);
  expect(accuracyRange(0.1, 0.1)).toEqual([0, 0.1]);
  expect(accuracyRange(-0.05, 0.4)).toEqual([-0.1, 0.4]);
  expect(accuracyRange(0.3, 0.6)).toEqual([0.3, 0.6]);
  expect(accuracyRange(1, 1)).toEqual([0.9, 1]);
  expect(accuracyRange(0, 0)).toEqual([0, 0.1]);
  expect(accuracyRange(null, null)).toEqual([0, 1]);
});

test("a loss axis starts at zero unless a loss is negative", () => {
  expect(lossRange(0.2, 2)).toEqual([0, 2.16]);
  expect(lossRange(0.2, 2, true)).toEqual([0, 2.6]);
  expect(lossRange(-1, 1)).toEqual([-1, 1.16]);
  expect(lossRange(0, 0)).toEqual([0, 1]);
  expect(lossRange(null, null)).toEqual([0, 1]);
});

test("a logarithmic range holds the data, and room for marks", () => {
  const [low, high] = logRange(0.01, 1);
  expect([low < 0.01, low > 0.005, high > 1, high < 2]).toEqual([true, true, true, true]);
  expect(logRange(0.01, 1, true)[1]).toBeGreaterThan(high);
  expect(logRange(0.5, 0.5)[0]).toBeLessThan(0.5);
  expect([logRange(null, null), logRange(-2, 1), logRange(0, 0)]).toEqual([[0.1, 1], [0.1, 1], [0.1, 1]]);
});
