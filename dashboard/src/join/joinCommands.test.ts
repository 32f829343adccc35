import { expect, test } from "vitest";
import type { FleetNode } from "../api/types";
import { newNodes } from "./newNodes";
import { dockerCommands, isLoopback, NAME, pipCommands, scriptLines } from "./joinCommands";

const ask = { address: "https://hub.example:8080", token: "sht_a-b_c", name: "clinic-a", learner: "mine.py:learner" };

test("the lines are those of shoal join", () => {
  expect(pipCommands(ask)).toBe(
    "pip install '.[torch]'    # in a clone of shoal; with its wheel: pip install 'shoal-….whl[torch]'\nshoal join https://hub.example:8080 --token sht_a-b_c --learner mine.py:learner --name clinic-a",
  );
  expect(pipCommands({ ...ask, name: "" })).not.toContain("--name");
  const docker = dockerCommands(ask);
  expect(docker).toContain("-v shoal-clinic-a:/data");
  expect(docker).toContain("-e SHOAL_EDGE__LEARNER=/model/mine.py:learner \\\n  -e SHOAL_EDGE__NAME=clinic-a \\\n  shoal-edge-client");
  expect(dockerCommands({ ...ask, name: "", learner: "shoal.learn.digits:learner" })).toContain(
    "-e SHOAL_EDGE__LEARNER=shoal.learn.digits:learner \\\n  shoal-edge-client",
  );
});

test("a script joins with the same token and name", () => {
  expect(scriptLines(ask)).toContain('with shoal.join("https://hub.example:8080", token="sht_a-b_c", name="clinic-a") as node:');
  expect(scriptLines({ ...ask, name: "" })).toContain('token="sht_a-b_c") as node:');
});

test("whatever is written into a field stays one word", () => {
  expect(pipCommands({ ...ask, learner: "my file.py:x; rm -rf /" })).toContain("--learner 'my file.py:x; rm -rf /'");
  expect(pipCommands({ ...ask, learner: "it's.py:x" })).toContain(`--learner 'it'\\''s.py:x'`);
});

test("names are those that the coordinator takes", () => {
  expect(["clinic-a", "0", "a.b_c"].every((name) => NAME.test(name))).toBe(true);
  expect(["", "A", "-a", "a b", "a;b", "ä"].some((name) => NAME.test(name))).toBe(false);
});

test("an address of this machine alone is told", () => {
  expect(["localhost", "127.0.0.1", "[::1]"].map(isLoopback)).toEqual([true, true, true]);
  expect(["hub.example", "10.0.0.7"].map(isLoopback)).toEqual([false, false]);
});

test("who has come since is found by name and time", () => {
  const node = (name: string, joined_at: string): FleetNode => ({ name, joined_at }) as FleetNode;
  const before = [node("old", "2026-01-01T00:00:00Z"), node("again", "2026-01-01T00:00:00Z")];
  const after = [...before.slice(0, 1), node("again", "2026-01-02T00:00:00Z"), node("new", "2026-01-02T00:00:01Z")];
  expect(newNodes(before, after).map(({ name }) => name)).toEqual(["again", "new"]);
  expect(newNodes(before, before)).toEqual([]);
});
