import { expect, test } from "vitest";
import { version } from "../test/factories";
import { rankingValues, downsample } from "./downsample";

const loss = (index: number) => (index === 777 ? 9 : index === 4321 ? -3 : index === 2500 ? NaN : Math.sin(index / 50));
const run = Array.from({ length: 6000 }, (_, index) => version(index, { "train/loss": loss(index) }));

test("a short run is the very same list", () => {
  const short = run.slice(0, 100);
  expect(downsample(short, 100, rankingValues(short))).toBe(short);
});

test("a long run keeps its ends, its peaks and what diverged, in order, and is no longer than asked for", () => {
  const few = downsample(run, 400, rankingValues(run), (one) => one.number === 1234, 50);
  const numbers = few.map(({ number }) => number);
  expect(few.length).toBeLessThanOrEqual(402 + 1);
  expect(few.length).toBeGreaterThan(200);
  for (const number of [0, 777, 4321, 2500, 1234]) expect(numbers).toContain(number);
  expect(numbers.slice(-50)).toEqual(run.slice(-50).map(({ number }) => number));
  expect(numbers).toEqual(numbers.toSorted((a, b) => a - b));
});

test("what is measured now and then is not lost between what is measured always", () => {
  const rare = run.map((one) => (one.number % 100 === 7 ? version(one.number, { ...one.metrics, "eval/accuracy": one.number }) : one));
  const few = downsample(rare, 400, rankingValues(rare));
  expect(few.filter(({ metrics }) => metrics["eval/accuracy"] !== undefined).length).toBeGreaterThan(50);
});

test("a run of which nothing is measured is thinned evenly", () => {
  const plain = run.map(({ number }) => version(number));
  const few = downsample(plain, 100, rankingValues(plain));
  expect(few.length).toBeGreaterThan(40);
  expect(few.length).toBeLessThanOrEqual(101);
});
