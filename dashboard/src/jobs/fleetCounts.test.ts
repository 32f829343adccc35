import { expect, test } from "vitest";
import type { FleetNode } from "../api/types";
import { job } from "../test/factories";
import { countFleet, countActive } from "./fleetCounts";

test("every state has its number, also none", () => {
  const nodes = (["gone", "online", "gone"] as const).map((state) => ({ state }) as FleetNode);
  expect(countFleet(nodes)).toEqual([
    ["online", 1],
    ["training", 0],
    ["stale", 0],
    ["gone", 2],
  ]);
});

test("a job is under way until it has ended, also while it waits or is paused", () => {
  const states = ["waiting", "running", "paused", "evaluating", "done", "stopped", "failed"] as const;
  expect(countActive(states.map((state) => job({ state })))).toBe(4);
});
