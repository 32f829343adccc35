import { expect, test } from "vitest";
import { aged, begin, GRACE, greeted, lost } from "./connection";

test("a page that connects is not live yet, and unreachable if that takes too long", () => {
  const start = begin(1000);
  expect(start).toMatchObject({ phase: "reconnecting", known: false, lostAt: 1000 });
  expect(aged(start, 1000 + GRACE - 1)).toBe(start);
  expect(aged(start, 1000 + GRACE).phase).toBe("unreachable");
});

test("a loss is dated from its first sign, however often it shows", () => {
  const live = greeted(begin(0), 100, undefined);
  const gone = lost(live, 5000);
  expect(gone).toMatchObject({ phase: "reconnecting", lostAt: 5000, known: true });
  expect(lost(gone, 6000)).toBe(gone);
  const away = aged(gone, 5000 + GRACE);
  expect(away).toMatchObject({ phase: "unreachable", lostAt: 5000 });
  expect(lost(away, 20_000)).toBe(away);
});

test("a greeting makes it live and sets the clock", () => {
  const back = greeted(
    lost(greeted(begin(0), 0, undefined), 10),
    Date.parse("2026-11-21T08:00:00Z"),
    "2026-11-21T08:00:07Z",
  );
  expect(back).toEqual({ phase: "live", lostAt: null, known: true, skew: 7000 });
  expect(greeted(back, 0, "no time").skew).toBe(7000);
  expect(aged(back, 1e12)).toBe(back);
});
