import { expect, test } from "vitest";
import { pointsOnEllipse, curvedPath, spacing, type Ellipse } from "./ellipse";

const oval: Ellipse = { x: 300, y: 150, a: 280, b: 120 };

test.each([3, 7, 50])("%i places are on the rim, apart alike, the first at the top", (count) => {
  const places = pointsOnEllipse(oval, count);
  expect(places).toHaveLength(count);
  expect(places[0]).toMatchObject({ x: 300, y: 30 });
  for (const { x, y } of places) expect(((x - 300) / 280) ** 2 + ((y - 150) / 120) ** 2).toBeCloseTo(1);
  if (count < 10) return; // chords are shorter than the rim between them
  const apart = places.map((place, index) => {
    const next = places[(index + 1) % count]!;
    return Math.hypot(place.x - next.x, place.y - next.y);
  });
  expect(Math.min(...apart) / spacing(oval, count)).toBeGreaterThan(0.9);
  expect(Math.max(...apart) / spacing(oval, count)).toBeLessThan(1.05);
});

test("outwards is away from the rim, not from the middle", () => {
  const [top, right, bottom, left] = pointsOnEllipse({ ...oval, a: 100, b: 100 }, 4).map(({ out }) => out / Math.PI);
  expect(top).toBeCloseTo(-0.5);
  expect(right).toBeCloseTo(0);
  expect(bottom).toBeCloseTo(0.5);
  expect(Math.abs(left!)).toBeCloseTo(1);
});

test("a circle's spacing is its perimeter in parts", () => {
  expect(spacing({ x: 0, y: 0, a: 10, b: 10 }, 4)).toBeCloseTo(5 * Math.PI);
});

test("a line bends towards the middle", () => {
  const path = curvedPath({ x: 0, y: 150, out: 0 }, { x: 300, y: 0, out: 0 }, oval);
  expect(path).toBe("M0.0 150.0Q240.0 120.0 300.0 0.0");
});
