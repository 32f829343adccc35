/** A job's modes: with the server, in gossip mode, or returning to the server. */
import type { Job, Mode, JobEvent } from "../api/types";

/** A period in which a job was in one mode. */
export interface ModePeriod {
  mode: Mode;
  /** Both in milliseconds of the coordinator's clock; `to` is null for the current period. */
  from: number;
  to: number | null;
  why: string;
}

/** Beginnings of the texts of the coordinator's events about each mode. */
const EVENT_PREFIXES: [string, Mode][] = [
  ["the peers carry on", "gossip"],
  ["back to the server", "returning"],
  ["back at the server", "server"],
];

const modeOf = (event: JobEvent): Mode | undefined => EVENT_PREFIXES.find(([prefix]) => event.text.startsWith(prefix))?.[1];

export const allowsGossip = (job: Job): boolean =>
  job.mode !== "server" || (job.spec.gossip as { allowed?: boolean } | undefined)?.allowed === true;

/** Return whether the job is or has been in gossip mode. */
export const hasGossiped = (job: Job): boolean => job.mode !== "server" || job.mode_since !== null;

/** Describe the node and version from which a job was restored after a loss of the coordinator's disk; null: it was not. */
export function restoredFrom(job: Job): string | null {
  if (!job.restored_from) return null;
  const { node, version, term } = job.restored_from;
  return `restored from ${node || "a node"} at version ${version}, term ${term}`;
}

/** Return the periods from the start of the job to now or to its end. */
export function modePeriods(job: Job, modeEvents: JobEvent[]): ModePeriod[] {
  const start = Date.parse(job.started_at ?? job.created_at);
  const periods: ModePeriod[] = [{ mode: "server", from: start, to: null, why: "" }];
  for (const event of modeEvents) {
    const mode = modeOf(event);
    const last = periods.at(-1);
    if (mode === undefined || last === undefined || mode === last.mode) continue;
    const at = Math.max(last.from, Date.parse(event.at));
    last.to = at;
    periods.push({ mode, from: at, to: null, why: event.text.replace(/^[^:]*(: |$)/, "") });
  }
  const last = periods.at(-1);
  if (last !== undefined && job.ended_at !== null) last.to = Date.parse(job.ended_at);
  return periods;
}
