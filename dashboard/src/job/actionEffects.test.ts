import { expect, test } from "vitest";
import { job } from "../test/factories";
import { actionEffects } from "./actionEffects";

test("a stop says what is lost and what stays, for each moment", () => {
  const [round, now] = actionEffects("stop", job({ version: 4, busy: 3 }));
  expect(round).toMatchObject({ command: "stop-round", when: "After this round" });
  expect(round.text).toContain("is completed");
  expect(now).toMatchObject({ command: "stop-now", verb: "Abort", when: "Abort now" });
  expect(now?.text).toContain("3 nodes in the open round is discarded");
  expect(round.text).toContain("at version 5");
  expect(now?.text).toContain("at version 4");
});

test("a switch says what becomes of what the nodes learn", () => {
  const [there] = actionEffects("gossip", job({ version: 4 }));
  expect(there).toMatchObject({ command: "gossip", verb: "Switch" });
  expect(there.text).toContain("from version 4");
  const [back] = actionEffects("server", job({ version: 4, mode: "gossip" }));
  expect(back.command).toBe("server");
  expect(back.text).toContain("becomes version 5");
});

test("a job that was held is started", () => {
  const held = job({ state: "paused", started_at: null, model: null });
  expect(actionEffects("resume", held)).toMatchObject([{ command: "resume", verb: "Start" }]);
  expect(actionEffects("resume", { ...held, started_at: "2026-11-21T08:00:10Z" })[0].verb).toBe("Resume");
});

test("pausing and resuming have one way each", () => {
  expect(actionEffects("pause", job()).map((effect) => effect.command)).toEqual(["pause"]);
  expect(actionEffects("resume", job({ version: 7 }))[0].text).toContain("version 7");
});
