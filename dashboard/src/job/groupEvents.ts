/** The list of a job's events: urgent ones first, runs of routine decisions grouped. */
import type { JobEvent } from "../api/types";

export const EVENT_FILTERS = ["all", "decision", "node", "refusal", "warning", "state", "mode"] as const;
export type EventFilter = (typeof EVENT_FILTERS)[number];

/** One event, or a run of decisions, newest first. */
export type EventGroup = [JobEvent, ...JobEvent[]];

/** Number of warnings and refusals above the list. */
const URGENT_MAX = 3;
/** Shorter runs of decisions are not grouped. */
const RUN_MIN = 3;

const isUrgent = ({ kind }: JobEvent): boolean => kind === "warning" || kind === "refusal";

/** Group events (oldest first) for the list. With a filter, all events of that kind are returned, newest first. */
export function groupEvents(events: readonly JobEvent[], filter: EventFilter): { urgent: JobEvent[]; groups: EventGroup[] } {
  const newestFirst = events.filter((event) => filter === "all" || event.kind === filter).toReversed();
  if (filter !== "all") return { urgent: [], groups: newestFirst.map((event) => [event]) };
  const urgent = newestFirst.filter(isUrgent).slice(0, URGENT_MAX);
  const groups: EventGroup[] = [];
  let run: JobEvent[] = [];
  const closeRun = () => {
    const [first, ...others] = run;
    if (first !== undefined && run.length >= RUN_MIN) groups.push([first, ...others]);
    else groups.push(...run.map((event): EventGroup => [event]));
    run = [];
  };
  for (const event of newestFirst) {
    if (urgent.includes(event)) continue;
    if (event.kind === "decision") {
      run.push(event);
      continue;
    }
    closeRun();
    groups.push([event]);
  }
  closeRun();
  return { urgent, groups };
}
