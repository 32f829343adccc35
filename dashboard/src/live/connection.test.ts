import { expect, test } from "vitest";
import { checkTimeout, initialConnection, UNREACHABLE_MS, connected, disconnected } from "./connection";

test("a page that connects is not live yet, and unreachable if that takes too long", () => {
  const start = initialConnection(1000);
  expect(start).toMatchObject({ phase: "reconnecting", wasConnected: false, lostAt: 1000 });
  expect(checkTimeout(start, 1000 + UNREACHABLE_MS - 1)).toBe(start);
  expect(checkTimeout(start, 1000 + UNREACHABLE_MS).phase).toBe("unreachable");
});

test("a loss is dated from its first sign, however often it shows", () => {
  const live = connected(initialConnection(0), 100, undefined);
  const gone = disconnected(live, 5000);
  expect(gone).toMatchObject({ phase: "reconnecting", lostAt: 5000, wasConnected: true });
  expect(disconnected(gone, 6000)).toBe(gone);
  const away = checkTimeout(gone, 5000 + UNREACHABLE_MS);
  expect(away).toMatchObject({ phase: "unreachable", lostAt: 5000 });
  expect(disconnected(away, 20_000)).toBe(away);
});

test("a greeting makes it live and sets the clock", () => {
  const back = connected(
    disconnected(connected(initialConnection(0), 0, undefined), 10),
    Date.parse("2026-11-21T08:00:00Z"),
    "2026-11-21T08:00:07Z",
  );
  expect(back).toEqual({ phase: "live", lostAt: null, wasConnected: true, skew: 7000 });
  expect(connected(back, 0, "no time").skew).toBe(7000);
  expect(checkTimeout(back, 1e12)).toBe(back);
});
