/** How a job's notes stand in their list: what needs a look first, and routine folded. */
import type { Note } from "../api/types";

export const KINDS = ["all", "decision", "node", "refusal", "warning", "state", "mode"] as const;
export type Kind = (typeof KINDS)[number];

/** A row of the list, newest first: one note, or a run of decisions. */
export type Folded = [Note, ...Note[]];

/** Warnings and refusals that stand above the list. */
const URGENT_MAX = 3;
/** Shorter runs of decisions are shown as they are. */
const RUN_MIN = 3;

const needsALook = ({ kind }: Note): boolean => kind === "warning" || kind === "refusal";

/** `notes`: oldest first. Where one kind is chosen, all of it is shown, newest first. */
export function arrange(notes: readonly Note[], kind: Kind): { urgent: Note[]; rows: Folded[] } {
  const newest = notes.filter((note) => kind === "all" || note.kind === kind).toReversed();
  if (kind !== "all") return { urgent: [], rows: newest.map((note) => [note]) };
  const urgent = newest.filter(needsALook).slice(0, URGENT_MAX);
  const rows: Folded[] = [];
  let run: Note[] = [];
  const close = () => {
    const [first, ...others] = run;
    if (first !== undefined && run.length >= RUN_MIN) rows.push([first, ...others]);
    else rows.push(...run.map((note): Folded => [note]));
    run = [];
  };
  for (const note of newest) {
    if (urgent.includes(note)) continue;
    if (note.kind === "decision") {
      run.push(note);
      continue;
    }
    close();
    rows.push([note]);
  }
  close();
  return { urgent, rows };
}
