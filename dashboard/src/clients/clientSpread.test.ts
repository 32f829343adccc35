import { expect, test } from "vitest";
import { version } from "../test/factories";
import { columnOf, clientSpread } from "./clientSpread";
import { clientMetric } from "../domain/metrics";

const versions = [0, 1, 2, 3].map((number) => version(number));

test("each version has the column that it lies in", () => {
  const bands = { rounds: [1, 3], step: 2, mean: [0, 0], low: [1, null], high: [2, NaN] };
  const { low, high, highlighted } = clientSpread(versions, bands, undefined);
  expect(low).toEqual([undefined, 1, 1, undefined]);
  expect(high).toEqual([undefined, 2, 2, NaN].map((value) => (Number.isNaN(value) ? undefined : value)));
  expect(highlighted).toEqual([undefined, undefined, undefined, undefined]);
  expect(columnOf(bands, 0)).toBe(-1);
});

test("a client that diverged is a mark, one that said nothing is none", () => {
  const bands = { rounds: [0], step: 1, mean: [0], low: [1], high: [2] };
  const found = clientSpread(versions, bands, { name: "a", rounds: [0, 1, 2], step: 1, values: [0.5, NaN, null] });
  expect(found).toMatchObject({ name: "a", highlighted: [0.5, null, undefined, undefined] });
});

test("one client may be told in finer columns than all of them", () => {
  const bands = { rounds: [0, 2], step: 2, mean: [0, 0], low: [1, 2], high: [3, 4] };
  const found = clientSpread(versions, bands, { name: "a", rounds: [0, 1, 2, 3], step: 1, values: [5, 6, 7, 8] });
  expect(found).toMatchObject({ low: [1, 1, 2, 2], highlighted: [5, 6, 7, 8] });
});

test("what the coordinator measured alone has no place among nodes", () => {
  expect(clientMetric(["held_out/accuracy", "eval/accuracy", "train/accuracy"])).toBe("eval/accuracy");
  expect(clientMetric(["held_out/loss"])).toBeUndefined();
});
