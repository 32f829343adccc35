import { expect, test } from "vitest";
import { job } from "../test/make";
import { effects } from "./effects";

test("a stop says what is lost and what stays, for each moment", () => {
  const [round, now] = effects("stop", job({ version: 4, busy: 3 }));
  expect(round).toMatchObject({ command: "stop-round", when: "After this round" });
  expect(round.text).toContain("finished and counted");
  expect(now).toMatchObject({ command: "stop-now", verb: "Abort", when: "Abort now" });
  expect(now?.text).toContain("3 nodes in the open round is thrown away");
  expect(round.text).toContain("at version 5");
  expect(now?.text).toContain("at version 4");
});

test("a switch says what becomes of what the nodes learn", () => {
  const [there] = effects("gossip", job({ version: 4 }));
  expect(there).toMatchObject({ command: "gossip", verb: "Switch" });
  expect(there.text).toContain("from version 4");
  const [back] = effects("server", job({ version: 4, mode: "away" }));
  expect(back.command).toBe("server");
  expect(back.text).toContain("becomes version 5");
});

test("a job that was held is started", () => {
  const held = job({ state: "paused", started_at: null, model: null });
  expect(effects("resume", held)).toMatchObject([{ command: "resume", verb: "Start" }]);
  expect(effects("resume", { ...held, started_at: "2026-11-21T08:00:10Z" })[0].verb).toBe("Resume");
});

test("pausing and resuming have one way each", () => {
  expect(effects("pause", job()).map((effect) => effect.command)).toEqual(["pause"]);
  expect(effects("resume", job({ version: 7 }))[0].text).toContain("version 7");
});
