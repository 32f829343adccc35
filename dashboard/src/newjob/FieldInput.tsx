import { useState } from "react";
import { kindOf, type Schema } from "./schema";
import { parsePairs, formatPairs, parseInput, parseWords } from "./values";

interface Props {
  id: string;
  root: Schema;
  schema: Schema;
  value: unknown;
  onChange: (value: unknown) => void;
  describedBy: string;
  invalid: boolean;
}

/** Input of one field; the default is its placeholder. */
export function FieldInput({ id, root, schema, value, onChange, describedBy, invalid }: Props) {
  const kind = kindOf(root, schema);
  const common = { id, "aria-describedby": describedBy, "aria-invalid": invalid || undefined };
  const usual = schema.default === undefined ? "" : String(schema.default);
  if (kind === "flag") {
    const on = typeof value === "boolean" ? value : schema.default === true;
    return (
      <input
        {...common}
        type="checkbox"
        checked={on}
        onChange={(event) => onChange(event.target.checked === (schema.default === true) ? undefined : event.target.checked)}
      />
    );
  }
  if (kind === "choice") {
    const options = schema.enum ?? [];
    const chosen = options.findIndex((option) => option === (value ?? schema.default));
    const pick = (index: number) => onChange(options[index] === schema.default ? undefined : options[index]);
    return (
      <select {...common} value={chosen} onChange={(event) => pick(Number(event.target.value))}>
        {chosen < 0 && <option value={-1}>{String(value)}</option>}
        {options.map((option, index) => (
          <option key={index} value={index}>
            {String(option)}
          </option>
        ))}
      </select>
    );
  }
  if (kind === "words") return <Words common={common} value={value} onChange={onChange} />;
  if (kind === "free") return <FreeText common={common} value={value} onChange={onChange} />;
  const numeric = kind === "number" || (schema.anyOf?.some(({ type }) => type === "integer") ?? false);
  return (
    <NumberOrText common={common} numeric={numeric} isNumber={kind === "number"} usual={usual} value={value} onChange={onChange} />
  );
}

interface Common {
  id: string;
  "aria-describedby": string;
  "aria-invalid": true | undefined;
}

interface LineProps {
  common: Common;
  numeric: boolean;
  isNumber: boolean;
  usual: string;
  value: unknown;
  onChange: (value: unknown) => void;
}

/** Text input that keeps the text while it is typed: "0." is not a number yet. */
function NumberOrText({ common, numeric, isNumber, usual, value, onChange }: LineProps) {
  const [text, setText] = useState(() => shown(value));
  const own = text.trim() === "" ? undefined : parseInput(text, numeric);
  const current = same(own, value) ? text : shown(value);
  return (
    <input
      {...common}
      type="text"
      inputMode={isNumber ? "decimal" : undefined}
      autoComplete="off"
      spellCheck={false}
      placeholder={usual}
      value={current}
      onChange={(event) => {
        setText(event.target.value);
        onChange(parseInput(event.target.value, numeric));
      }}
    />
  );
}

const shown = (value: unknown): string =>
  value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value);

const same = (one: unknown, other: unknown): boolean => (one ?? "") === (other ?? "");

interface FreeProps {
  common: Common;
  value: unknown;
  onChange: (value: unknown) => void;
}

/** Input of a list, separated by commas; a trailing comma is kept while it is typed. */
function Words({ common, value, onChange }: FreeProps) {
  const shownOf = (words: unknown): string => (Array.isArray(words) ? words.join(", ") : shown(words));
  const [text, setText] = useState(() => shownOf(value));
  const current = JSON.stringify(parseWords(text)) === JSON.stringify(value) ? text : shownOf(value);
  return (
    <input
      {...common}
      type="text"
      autoComplete="off"
      spellCheck={false}
      placeholder="separated by commas"
      value={current}
      onChange={(event) => {
        setText(event.target.value);
        onChange(parseWords(event.target.value));
      }}
    />
  );
}

function FreeText({ common, value, onChange }: FreeProps) {
  const [text, setText] = useState(() => formatPairs(value));
  const current = JSON.stringify(parsePairs(text)) === JSON.stringify(value) ? text : formatPairs(value);
  return (
    <textarea
      {...common}
      rows={Math.max(2, current.split("\n").length)}
      spellCheck={false}
      placeholder="key = value"
      value={current}
      onChange={(event) => {
        setText(event.target.value);
        onChange(parsePairs(event.target.value));
      }}
    />
  );
}
