/** The fleet at a glance. */
import type { FleetNode, Job } from "../api/types";
import { hasEnded } from "./order";

export const FLEET_STATES = ["online", "training", "stale", "gone"] as const satisfies readonly FleetNode["state"][];

/** How many nodes are in each state, in the order in which they are shown. */
export const countFleet = (nodes: readonly FleetNode[]): [FleetNode["state"], number][] =>
  FLEET_STATES.map((state) => [state, nodes.filter((node) => node.state === state).length]);

export const underWay = (jobs: readonly Job[]): number => jobs.filter((job) => !hasEnded(job)).length;

/** Where the day began that `now` (ms) lies in, by the clock of this machine. */
export function midnightOf(now: number): Date {
  const day = new Date(now);
  day.setHours(0, 0, 0, 0);
  return day;
}
