import { expect, test } from "vitest";
import { layOutTopology, truncate } from "./topologyLayout";

const names = (count: number) => Array.from({ length: count }, (_, index) => `node-${index}`);

test.each([
  [3, 330],
  [7, 870],
  [20, 330],
  [50, 330],
  [50, 870],
])("%i nodes in %i px stand apart and inside, labels included", (count, width) => {
  const { points, labels, radius, height, fontSize } = layOutTopology(names(count), width);
  const all = [...points.values()];
  all.forEach((p, index) => {
    for (const q of all.slice(index + 1)) expect(Math.hypot(p.x - q.x, p.y - q.y)).toBeGreaterThan(2 * radius);
  });
  for (const { text, x, y, anchor, turn } of labels.values()) {
    const length = text.length * fontSize * 0.56 * (anchor === "end" ? -1 : anchor === "start" ? 1 : 0.5);
    const radians = (turn * Math.PI) / 180;
    const [endX, endY] = [x + length * Math.cos(radians), y + length * Math.sin(radians)];
    for (const at of [x, endX]) expect(at).toBeGreaterThanOrEqual(0), expect(at).toBeLessThanOrEqual(width);
    for (const at of [y, endY]) expect(at).toBeGreaterThanOrEqual(0), expect(at).toBeLessThanOrEqual(height);
  }
});

test("labels never stand on their heads, and lie flat where there is room", () => {
  for (const { turn } of layOutTopology(names(50), 870).labels.values()) {
    expect(Math.cos((turn * Math.PI) / 180)).toBeGreaterThanOrEqual(-1e-9);
  }
  expect(new Set([...layOutTopology(names(12), 870).labels.values()].map(({ turn }) => turn))).toEqual(new Set([0]));
});

test("a name that nobody could draw is shortened, and what hides is written out first", () => {
  expect(truncate("abcdef", 6)).toBe("abcdef");
  expect(truncate("a👩‍🚀cdefgh", 4)).toHaveLength(5);
  expect(truncate("abcdefg", 4)).toBe("abc…");
  const { labels, points } = layOutTopology(["\u202e".repeat(4000), "b", "c"], 870);
  expect(labels.get("\u202e".repeat(4000))?.text).toMatch(/^⟨202E⟩.*…$/);
  expect(points.size).toBe(3);
});

test("of two hundred nodes no two overlap, and no two names do", () => {
  const names = Array.from({ length: 200 }, (_, index) => `node-${index}`);
  for (const width of [380, 820]) {
    const { points, labels, radius, fontSize } = layOutTopology(names, width);
    const all = [...points.values()];
    const apart = Math.min(...all.map((place, index) => Math.hypot(place.x - all.at(index - 1)!.x, place.y - all.at(index - 1)!.y)));
    expect(2 * radius).toBeLessThanOrEqual(apart + 0.5);
    const shown = names.filter((name) => labels.get(name)?.text !== "").map((name) => points.get(name)!);
    expect(shown.length).toBeGreaterThan(20);
    for (const [index, place] of shown.entries()) {
      const before = shown.at(index - 1)!;
      if (index > 0) expect(Math.hypot(place.x - before.x, place.y - before.y)).toBeGreaterThan(fontSize * 0.9);
    }
  }
});
