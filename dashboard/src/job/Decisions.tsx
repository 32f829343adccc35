import { memo, useMemo, useState } from "react";
import type { Note, NoteKind } from "../api/types";
import { count, plural } from "../format/number";
import { visible } from "../format/text";
import { Link, nodePath, useChoice } from "../router";
import { Icon } from "../ui/Icon";
import { Moment } from "../ui/Moment";
import { Unanswered, type Question } from "../ui/Unanswered";
import { arrange, KINDS, type Folded, type Kind } from "./arrange";

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

/** What the coordinator decided and why, and what happened to the nodes; warnings first, then newest first. */
export function Decisions({ notes, answer }: { notes: Note[]; answer: Question }) {
  const [kind, setKind] = useChoice<Kind>("notes", KINDS);
  const [shown, setShown] = useState(PAGE);
  const numbers = useMemo(() => countKinds(notes), [notes]);
  const { urgent, rows } = useMemo(() => arrange(notes, kind), [notes, kind]);
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
      {answer.data === undefined ? (
        <Unanswered question={answer} lines={5} />
      ) : urgent.length + rows.length === 0 ? (
        <p className="decisions-none">
          {notes.length === 0 ? "Nothing has been decided yet." : "Nothing of this kind."}
        </p>
      ) : (
        <div className="decisions-scroll" tabIndex={0} role="region" aria-label="Decisions, newest first">
          {urgent.length > 0 && (
            <ol className="notes-urgent" data-testid="notes-urgent" aria-label="Latest warnings and refusals">
              {urgent.map((note) => (
                <Entry key={note.id} note={note} />
              ))}
            </ol>
          )}
          <ol>
            {rows.slice(0, shown).map((row) => (
              <Row key={row[0].id} row={row} />
            ))}
          </ol>
          {rows.length > shown && (
            <button type="button" className="quiet-button" onClick={() => setShown(shown + PAGE)}>
              Show {count(Math.min(PAGE, rows.length - shown))} older
            </button>
          )}
        </div>
      )}
    </section>
  );
}

/** One note, or several decisions of rounds that went as rounds go: the newest of them, and the others on demand. */
function Row({ row: [newest, ...others] }: { row: Folded }) {
  return (
    <>
      <Entry note={newest} />
      {others.length > 0 && (
        <li className="notes-folded">
          <details>
            <summary>{plural(others.length, "earlier decision")}</summary>
            <ol>
              {others.map((note) => (
                <Entry key={note.id} note={note} />
              ))}
            </ol>
          </details>
        </li>
      )}
    </>
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
