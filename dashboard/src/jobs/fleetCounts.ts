/** Counts of nodes and jobs. */
import type { FleetNode, Job } from "../api/types";
import { hasEnded } from "../domain/job";

export const FLEET_STATES = ["online", "training", "stale", "gone"] as const satisfies readonly FleetNode["state"][];

/** Count the nodes by state, in the order in which they are shown. */
export const countFleet = (nodes: readonly FleetNode[]): [FleetNode["state"], number][] =>
  FLEET_STATES.map((state) => [state, nodes.filter((node) => node.state === state).length]);

export const countActive = (jobs: readonly Job[]): number => jobs.filter((job) => !hasEnded(job)).length;

/** Return the start of the day of `now` (ms) in the local time zone. */
export function startOfDay(now: number): Date {
  const day = new Date(now);
  day.setHours(0, 0, 0, 0);
  return day;
}
