/** Who has led a job, and from when to when: from the notes of its moves. */
import type { Job, Mode, Note } from "../api/types";

export interface Stay {
  mode: Mode;
  /** Both in milliseconds of the coordinator's clock; `to` is null while it lasts. */
  from: number;
  to: number | null;
  why: string;
}

export const MODE_WORDS: Record<Mode, string> = {
  server: "At the server",
  away: "With its nodes",
  returning: "Coming back",
};

/** How the coordinator begins to tell of each move. */
const MOVES: [string, Mode][] = [
  ["the peers carry on", "away"],
  ["back to the server", "returning"],
  ["back at the server", "server"],
];

const modeOf = (note: Note): Mode | undefined => MOVES.find(([words]) => note.text.startsWith(words))?.[1];

export const mayGossip = (job: Job): boolean =>
  job.mode !== "server" || (job.spec.gossip as { allowed?: boolean } | undefined)?.allowed === true;

/** Whether its nodes have carried it on by themselves, or do. */
export const hasGossiped = (job: Job): boolean => job.mode !== "server" || job.mode_since !== null;

/** Where a job goes on from, if the coordinator had lost its disk; null for any other. */
export function origin(job: Job): string | null {
  if (!job.rebuilt) return null;
  const { node, version, term } = job.rebuilt;
  return `rebuilt from ${node || "a node"} at version ${version}, term ${term}`;
}

/** From the job's first model to now, or to its end. */
export function stays(job: Job, moves: Note[]): Stay[] {
  const begun = Date.parse(job.started_at ?? job.created_at);
  const found: Stay[] = [{ mode: "server", from: begun, to: null, why: "" }];
  for (const note of moves) {
    const mode = modeOf(note);
    const last = found[found.length - 1];
    if (mode === undefined || last === undefined || mode === last.mode) continue;
    const at = Math.max(last.from, Date.parse(note.at));
    last.to = at;
    found.push({ mode, from: at, to: null, why: note.text.replace(/^[^:]*(: |$)/, "") });
  }
  const last = found[found.length - 1];
  if (last !== undefined && job.ended_at !== null) last.to = Date.parse(job.ended_at);
  return found;
}
