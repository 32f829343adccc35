import { expect, test } from "vitest";
import { fitting, SHOWN, type Entry } from "./entries";

const entry = (text: string, kind = "job"): Entry => ({ id: text, text, kind, run: () => undefined });

test("every word must be there; what begins with the first one comes first", () => {
  const all = [entry("mnist-digits"), entry("digits"), entry("digits-2"), entry("digits", "node"), entry("other")];
  expect(fitting(all, "dig").map(({ text }) => text)).toEqual(["digits", "digits-2", "digits", "mnist-digits"]);
  expect(fitting(all, "DIGITS node").map(({ kind }) => kind)).toEqual(["node"]);
  expect(fitting(all, "  ")).toHaveLength(5);
  expect(fitting(all, "nothing")).toEqual([]);
});

test("a long list is cut", () => {
  expect(fitting(Array.from({ length: 500 }, (_, index) => entry(`node-${index}`)), "node")).toHaveLength(SHOWN);
});
