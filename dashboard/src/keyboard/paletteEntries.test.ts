import { expect, test } from "vitest";
import { filterEntries, SHOWN, type PaletteEntry } from "./paletteEntries";

const entry = (text: string, kind = "job"): PaletteEntry => ({ id: text, text, kind, run: () => undefined });

test("every word must be there; what begins with the first one comes first", () => {
  const all = [entry("mnist-digits"), entry("digits"), entry("digits-2"), entry("digits", "node"), entry("other")];
  expect(filterEntries(all, "dig").map(({ text }) => text)).toEqual(["digits", "digits-2", "digits", "mnist-digits"]);
  expect(filterEntries(all, "DIGITS node").map(({ kind }) => kind)).toEqual(["node"]);
  expect(filterEntries(all, "  ")).toHaveLength(5);
  expect(filterEntries(all, "nothing")).toEqual([]);
});

test("a long list is cut", () => {
  expect(filterEntries(Array.from({ length: 500 }, (_, index) => entry(`node-${index}`)), "node")).toHaveLength(SHOWN);
});
