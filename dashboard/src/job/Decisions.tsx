import { memo, useMemo, useState } from "react";
import type { Note, NoteKind } from "../api/types";
import { count } from "../format/number";
import { visible } from "../format/text";
import { Link, nodePath, useChoice } from "../router";
import { Icon } from "../ui/Icon";
import { Moment } from "../ui/Moment";

const KINDS = ["all", "decision", "node", "refusal", "warning", "state", "mode"] as const;
type Kind = (typeof KINDS)[number];
const WORDS: Record<Kind, string> = {
  all: "All",
  decision: "Decisions",
  node: "Nodes",
  refusal: "Refusals",
  warning: "Warnings",
  state: "State",
  mode: "Moves",
};
const PAGE = 100;

/** What the coordinator decided and why, and what happened to the nodes; newest first. */
export function Decisions({ notes }: { notes: Note[] }) {
  const [kind, setKind] = useChoice<Kind>("notes", KINDS);
  const [shown, setShown] = useState(PAGE);
  const numbers = useMemo(() => countKinds(notes), [notes]);
  const chosen = useMemo(
    () => notes.filter((note) => kind === "all" || note.kind === kind).toReversed(),
    [notes, kind],
  );
  return (
    <section className="decisions panel" data-testid="decisions" aria-label="Decisions">
      <header className="decisions-head">
        <h2>Decisions</h2>
        <div className="chips" role="radiogroup" aria-label="Show">
          {KINDS.filter((option) => option === "all" || option === kind || numbers[option] > 0).map((option) => (
            <label key={option} data-testid={`notes-${option}`}>
              <input
                type="radio"
                name="notes"
                className="visually-hidden"
                checked={kind === option}
                onChange={() => setKind(option)}
              />
              <span>
                {WORDS[option]}
                {option !== "all" && <small> {count(numbers[option])}</small>}
              </span>
            </label>
          ))}
        </div>
      </header>
      {chosen.length === 0 ? (
        <p className="decisions-none">
          {notes.length === 0 ? "Nothing has been decided yet." : "Nothing of this kind."}
        </p>
      ) : (
        <div className="decisions-scroll" tabIndex={0} role="region" aria-label="Decisions, newest first">
          <ol>
            {chosen.slice(0, shown).map((note) => (
              <Entry key={note.id} note={note} />
            ))}
          </ol>
          {chosen.length > shown && (
            <button type="button" className="quiet-button" onClick={() => setShown(shown + PAGE)}>
              Show {count(Math.min(PAGE, chosen.length - shown))} older
            </button>
          )}
        </div>
      )}
    </section>
  );
}

function countKinds(notes: Note[]): Record<NoteKind, number> {
  const numbers: Record<NoteKind, number> = { decision: 0, mode: 0, node: 0, refusal: 0, state: 0, warning: 0 };
  for (const note of notes) numbers[note.kind] += 1;
  return numbers;
}

const Entry = memo(function Entry({ note }: { note: Note }) {
  return (
    <li className="note" data-kind={note.kind}>
      <span className="note-icon" title={note.kind}>
        <Icon name={note.kind} />
        <span className="visually-hidden">{note.kind}:</span>
      </span>
      <p>
        {note.node !== null && !note.text.includes(note.node) && (
          <>
            <Link href={nodePath(note.node)}>
              <bdi className="note-node">{visible(note.node)}</bdi>
            </Link>{" "}
          </>
        )}
        <bdi>{visible(note.text)}</bdi>
      </p>
      <span className="note-when">
        <Moment at={note.at} />
        <span title={`version ${note.version}`}>v{note.version}</span>
      </span>
    </li>
  );
});
