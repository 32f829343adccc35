import { keepPreviousData, useMutation, useQuery } from "@tanstack/react-query";
import { useEffect, useState, type FormEvent } from "react";
import { begin } from "../api/commands";
import { checkQuery, type Draft } from "../api/queries";
import type { Mistake } from "../api/types";
import { visible } from "../format/text";
import { jobPath, navigate, replaceParam } from "../router";
import { Copy } from "../ui/Copy";
import { Icon } from "../ui/Icon";
import { Problem } from "../ui/Problem";
import { runCommand } from "./command";
import { TableFields } from "./Fields";
import { ofTable } from "./mistakes";
import type { Schema } from "./schema";
import { toAddress } from "./start";
import { writeToml } from "./toml";
import type { Values } from "./values";
import { Loading } from "../ui/Unanswered";

const PAUSE_MS = 250;

/** What is being written: the values, and the text, if somebody has written that himself since. */
interface Writing {
  values: Values;
  text: string | null;
}

export function Editor({ schema, initial }: { schema: Schema; initial: Values }) {
  const [writing, setWriting] = useState<Writing>({ values: initial, text: null });
  // Nobody is told that a name is missing before he had a chance to give one.
  const [asked, setAsked] = useState(false);
  const settled = useSettled(writing);
  const draft: Draft = settled.text === null ? { spec: settled.values } : { toml: settled.text };
  const { data: checked, error, isPlaceholderData } = useQuery({ ...checkQuery(draft), placeholderData: keepPreviousData });
  const current = settled === writing && !isPlaceholderData;
  const mistakes = checked?.mistakes ?? [];
  const nameless = !asked && (writing.values.name ?? "") === "";
  const shown = nameless ? mistakes.filter(({ place }) => place[0] !== "name") : mistakes;
  const read = current && settled.text !== null && checked && !isUnread(mistakes) ? checked.spec : null;
  // What somebody writes as text, the form shows.
  if (read !== null && JSON.stringify(read) !== JSON.stringify(writing.values)) {
    const next = { ...writing, values: read };
    setWriting(next);
  }
  useEffect(() => replaceParam("spec", toAddress(settled.values)), [settled]);
  const submission = useMutation({
    mutationFn: (hold: boolean) => begin(checked?.spec ?? {}, hold),
    onSuccess: (name) => navigate(jobPath(name)),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setAsked(true);
    if (current && mistakes.length === 0) submission.mutate(false);
  };
  const text = writing.text ?? writeToml(writing.values);
  return (
    <form className="new-job-body" onSubmit={submit} noValidate>
      <div className="new-job-form form panel">
        <TableFields
          root={schema}
          table={schema}
          place={[]}
          values={writing.values}
          mistakes={shown}
          onChange={(values) => {
            if (values.name !== writing.values.name) setAsked(true);
            setWriting({ values, text: null });
          }}
        />
      </div>
      <div className="new-job-file">
        <div className="panel">
          <TomlText
            text={text}
            onChange={(next) => {
              setAsked(true);
              setWriting({ ...writing, text: next });
            }}
          />
          <Verdict
            mistakes={ofTable(shown, [], Object.keys(schema.properties ?? {}))}
            all={shown.length}
            nameless={nameless}
            known={checked !== undefined}
          />
          {error && <Problem error={error} />}
          {submission.error && <Problem error={submission.error} />}
          <div className="dialog-actions">
            <button
              type="button"
              className="button"
              data-testid="hold"
              title="Nothing is asked of nodes before somebody starts it"
              disabled={!current || mistakes.length > 0 || submission.isPending}
              onClick={() => submission.mutate(true)}
            >
              <Icon name="paused" /> Create, start later
            </button>
            <button
              type="submit"
              className="button primary"
              data-testid="begin"
              disabled={!current || shown.length > 0 || submission.isPending}
            >
              <Icon name="running" /> Begin
            </button>
          </div>
        </div>
        <Command values={writing.values} text={text} />
      </div>
    </form>
  );
}

/** The file could not be read at all, so its values say nothing. */
const isUnread = (mistakes: readonly Mistake[]): boolean => mistakes.some(({ place }) => place.length === 0);

/** What was written when nothing has changed for a moment. */
function useSettled(writing: Writing): Writing {
  const [settled, setSettled] = useState(writing);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(writing), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [writing]);
  return settled;
}

function TomlText({ text, onChange }: { text: string; onChange: (text: string) => void }) {
  return (
    <>
      <div className="section-head">
        <label htmlFor="toml">
          <h2>The job file</h2>
        </label>
        <Copy text={text} what="the job file" />
      </div>
      <textarea
        id="toml"
        className="toml"
        spellCheck={false}
        autoComplete="off"
        rows={Math.min(32, Math.max(10, text.split("\n").length + 1))}
        value={text}
        onChange={(event) => onChange(event.target.value)}
        data-testid="toml"
      />
    </>
  );
}

interface VerdictProps {
  mistakes: Mistake[];
  all: number;
  /** It has no name yet, and nobody has been told so. */
  nameless: boolean;
  known: boolean;
}

/** Whether the job could begin; mistakes that stand at no field are said here. */
function Verdict({ mistakes, all, nameless, known }: VerdictProps) {
  if (!known) return <Loading lines={1} />;
  return (
    <div role="status" data-testid="verdict" data-mistakes={all}>
      {all === 0 && nameless ? (
        <p className="hint">The job can begin when it has a name.</p>
      ) : all === 0 ? (
        <p className="state done">
          <Icon name="done" /> The job can begin
        </p>
      ) : (
        <p className="state failed">
          <Icon name="warning" /> {all === 1 ? "1 mistake" : `${all} mistakes`}
        </p>
      )}
      {mistakes.map(({ text, hint }, index) => (
        <p key={index} className="field-mistake">
          {visible(text)}
          {hint && <span className="faint"> – {visible(hint)}</span>}
        </p>
      ))}
    </div>
  );
}

/** The same from a terminal. */
function Command({ values, text }: { values: Values; text: string }) {
  const command = runCommand(values, text, location.origin);
  return (
    <div className="panel command">
      <div className="section-head">
        <h2>From a terminal</h2>
        <Copy text={command} what="the command" />
      </div>
      <pre data-testid="command" tabIndex={0}>
        <code>{visible(command)}</code>
      </pre>
    </div>
  );
}
