import { keepPreviousData, useMutation, useQuery } from "@tanstack/react-query";
import { useEffect, useState, type FormEvent } from "react";
import { createJob } from "../api/commands";
import { draftCheckQuery, type Draft } from "./queries";
import type { FieldError } from "../api/types";
import { escapeHidden } from "../format/text";
import { jobPath, navigate, replaceParam } from "../router/router";
import { CopyButton } from "../ui/CopyButton";
import { Icon } from "../ui/Icon";
import { ErrorMessage } from "../ui/ErrorMessage";
import { runCommand } from "./runCommand";
import { TableFields } from "./SchemaFields";
import { errorsOfTable } from "./fieldErrors";
import type { Schema } from "./schema";
import { serializeDraft } from "./initialValues";
import { writeToml } from "./toml";
import type { Values } from "./values";
import { Loading } from "../ui/QueryStatus";

const PAUSE_MS = 250;

/** The draft: its values, and its text if the text was edited last. */
interface DraftState {
  values: Values;
  text: string | null;
}

export function JobEditor({ schema, initial }: { schema: Schema; initial: Values }) {
  const [writing, setWriting] = useState<DraftState>({ values: initial, text: null });
  // A missing name is not an error until the form has been edited.
  const [asked, setAsked] = useState(false);
  const settled = useDebounced(writing);
  const draft: Draft = settled.text === null ? { spec: settled.values } : { toml: settled.text };
  const { data: checked, error, isPlaceholderData } = useQuery({ ...draftCheckQuery(draft), placeholderData: keepPreviousData });
  const current = checked !== undefined && settled === writing && !isPlaceholderData;
  const mistakes = checked?.mistakes ?? [];
  const nameless = !asked && (writing.values.name ?? "") === "";
  const shown = nameless ? mistakes.filter(({ place }) => place[0] !== "name") : mistakes;
  const read = current && settled.text !== null && !isUnparsable(mistakes) ? checked.spec : null;
  // The form follows the text.
  if (read !== null && JSON.stringify(read) !== JSON.stringify(writing.values)) {
    const next = { ...writing, values: read };
    setWriting(next);
  }
  useEffect(() => replaceParam("spec", serializeDraft(settled.values)), [settled]);
  const submission = useMutation({
    mutationFn: ({ spec, paused }: { spec: Values; paused: boolean }) => createJob(spec, paused),
    onSuccess: (name) => navigate(jobPath(name)),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setAsked(true);
    if (current && mistakes.length === 0) submission.mutate({ spec: checked.spec, paused: false });
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
          <ValidationStatus
            mistakes={errorsOfTable(shown, [], Object.keys(schema.properties ?? {}))}
            all={shown.length}
            nameless={nameless}
            known={checked !== undefined}
          />
          {error && <ErrorMessage error={error} />}
          {submission.error && <ErrorMessage error={submission.error} />}
          <div className="dialog-actions">
            <button
              type="button"
              className="button"
              data-testid="create-paused"
              title="Nodes get no tasks until the job is started"
              disabled={!current || mistakes.length > 0 || submission.isPending}
              onClick={() => checked && submission.mutate({ spec: checked.spec, paused: true })}
            >
              <Icon name="paused" /> Create paused
            </button>
            <button
              type="submit"
              className="button primary"
              data-testid="start-job"
              disabled={!current || shown.length > 0 || submission.isPending}
            >
              <Icon name="running" /> Start
            </button>
          </div>
        </div>
        <Command values={writing.values} text={text} />
      </div>
    </form>
  );
}

/** Return whether the file could not be parsed, so that its values are unknown. */
const isUnparsable = (mistakes: readonly FieldError[]): boolean => mistakes.some(({ place }) => place.length === 0);

/** Return the draft once it has not changed for a moment. */
function useDebounced(writing: DraftState): DraftState {
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
          <h2>Job file</h2>
        </label>
        <CopyButton text={text} what="the job file" />
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
  mistakes: FieldError[];
  all: number;
  /** True if the name is missing, but not reported yet. */
  nameless: boolean;
  known: boolean;
}

/** Result of the validation, with the errors that belong to no field. */
function ValidationStatus({ mistakes, all, nameless, known }: VerdictProps) {
  if (!known) return <Loading lines={1} />;
  return (
    <div role="status" data-testid="validation" data-errors={all}>
      {all === 0 && nameless ? (
        <p className="hint">Enter a name to start the job.</p>
      ) : all === 0 ? (
        <p className="state done">
          <Icon name="done" /> Valid
        </p>
      ) : (
        <p className="state failed">
          <Icon name="warning" /> {all === 1 ? "1 error" : `${all} errors`}
        </p>
      )}
      {mistakes.map(({ text, hint }, index) => (
        <p key={index} className="field-mistake">
          {escapeHidden(text)}
          {hint && <span className="faint"> – {escapeHidden(hint)}</span>}
        </p>
      ))}
    </div>
  );
}

/** The command that submits the job from a terminal. */
function Command({ values, text }: { values: Values; text: string }) {
  const command = runCommand(values, text, location.origin);
  return (
    <div className="panel command">
      <div className="section-head">
        <h2>Command line</h2>
        <CopyButton text={command} what="the command" />
      </div>
      <pre data-testid="command" tabIndex={0}>
        <code>{escapeHidden(command)}</code>
      </pre>
    </div>
  );
}
