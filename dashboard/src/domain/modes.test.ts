import { expect, test } from "vitest";
import { job, jobEvent } from "../test/factories";
import { allowsGossip, restoredFrom, modePeriods } from "./modes";

const at = (time: string) => `2026-11-21T${time}Z`;
const move = (id: number, time: string, text: string) => jobEvent(id, { kind: "mode", at: at(time), text });
const ms = (time: string) => Date.parse(at(time));

const there = move(7, "09:00:00", "the peers carry on: new disk: the small one");
const back = move(8, "09:30:00", "back to the server: by an operator");
const arrived = move(9, "09:30:05", "back at the server");

test("each stay lasts until the next move, the last one until now", () => {
  expect(modePeriods(job(), [there, back, arrived])).toEqual([
    { mode: "server", from: ms("08:00:10"), to: ms("09:00:00"), why: "" },
    { mode: "gossip", from: ms("09:00:00"), to: ms("09:30:00"), why: "new disk: the small one" },
    { mode: "returning", from: ms("09:30:00"), to: ms("09:30:05"), why: "by an operator" },
    { mode: "server", from: ms("09:30:05"), to: null, why: "" },
  ]);
});

test("a job that has ended stays nowhere any longer", () => {
  const found = modePeriods(job({ state: "stopped", ended_at: at("09:10:00") }), [there]);
  expect(found.map((stay) => [stay.mode, stay.to])).toEqual([
    ["server", ms("09:00:00")],
    ["gossip", ms("09:10:00")],
  ]);
});

test("what tells no move, or the same again, adds nothing", () => {
  expect(modePeriods(job(), [there, move(8, "09:01:00", "something else"), there])).toHaveLength(2);
  expect(modePeriods(job(), [])).toHaveLength(1);
});

test("only a job that says so may be switched", () => {
  expect(allowsGossip(job())).toBe(false);
  expect(allowsGossip(job({ spec: { gossip: { allowed: false } } }))).toBe(false);
  expect(allowsGossip(job({ spec: { gossip: { allowed: true } } }))).toBe(true);
  expect(allowsGossip(job({ mode: "gossip" }))).toBe(true);
});

test("a job that was rebuilt says from whom, and where", () => {
  expect(restoredFrom(job())).toBeNull();
  expect(restoredFrom(job({ restored_from: null }))).toBeNull();
  expect(restoredFrom(job({ restored_from: { node: "b", version: 7, term: 1002 } }))).toBe("restored from b at version 7, term 1002");
  expect(restoredFrom(job({ restored_from: { node: "", version: 7, term: 1002 } }))).toBe("restored from a node at version 7, term 1002");
});
