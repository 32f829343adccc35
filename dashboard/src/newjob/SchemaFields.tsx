import type { ReactNode } from "react";
import type { Mistake } from "../api/types";
import { visible } from "../format/text";
import { Icon } from "../ui/Icon";
import { Control } from "./Control";
import { ofTable, within } from "./mistakes";
import { kindOf, rangeOf, resolve, tableOf, variantsOf, type Schema } from "./schema";
import { at, isTable, put, type Place, type Values } from "./values";

export interface Form {
  root: Schema;
  place: Place;
  values: Values;
  mistakes: readonly Mistake[];
  onChange: (values: Values) => void;
}

/** All fields of a table: lines first, then its tables. */
export function TableFields({ table, ...form }: Form & { table: Schema }) {
  const fields = Object.entries(table.properties ?? {}).map(
    ([key, schema]) => [key, resolve(form.root, schema), kindOf(form.root, schema)] as const,
  );
  const isGroup = (kind: string) => ["table", "variants", "list", "optional"].includes(kind);
  return (
    <>
      {fields
        .filter(([, , kind]) => !isGroup(kind))
        .map(([key, schema]) => (
          <Field key={key} {...form} name={key} schema={schema} required={table.required?.includes(key) ?? false} />
        ))}
      {fields
        .filter(([, , kind]) => isGroup(kind))
        .map(([key, schema, kind]) => (
          <Group key={key} {...form} place={[...form.place, key]} name={key} schema={schema} kind={kind} />
        ))}
    </>
  );
}

interface FieldProps extends Form {
  name: string;
  schema: Schema;
  required: boolean;
}

/** One line: its name, what may stand there, what it means, and what is wrong with it. */
function Field({ name, schema, required, ...form }: FieldProps) {
  const place = [...form.place, name];
  const id = idOf(place);
  const wrong = within(form.mistakes, place);
  const range = rangeOf(schema);
  const about = [schema.description, range].filter(Boolean).join("; ");
  return (
    <div className="field" data-wrong={wrong.length > 0 || undefined}>
      <label htmlFor={id}>
        <code>{name}</code>
        {required && <span className="faint"> required</span>}
      </label>
      <Control
        id={id}
        root={form.root}
        schema={schema}
        value={at(form.values, place)}
        onChange={(value) => form.onChange(put(form.values, place, value))}
        describedBy={`${id}-about`}
        invalid={wrong.length > 0}
      />
      <div id={`${id}-about`} className="hint">
        <Words text={about} />
        <Wrong mistakes={wrong} />
      </div>
    </div>
  );
}

/** A text in which what stands between backticks is code. */
function Words({ text }: { text: string }) {
  return text.split("`").map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part));
}

const idOf = (place: Place): string => `field-${place.join("-")}`;

function Wrong({ mistakes }: { mistakes: readonly Mistake[] }) {
  return mistakes.map(({ text, hint }, index) => (
    <p key={index} className="field-mistake">
      <Icon name="warning" /> {visible(text)}
      {hint && <span> – {visible(hint)}</span>}
    </p>
  ));
}

interface GroupProps extends Form {
  name: string;
  schema: Schema;
  kind: string;
}

function Group({ name, schema, kind, ...form }: GroupProps) {
  const about = schema.description ? <p className="hint">{schema.description}</p> : null;
  if (kind === "variants") {
    return (
      <fieldset className="group">
        <legend>{name}</legend>
        {about}
        <Variants {...form} name={name} schema={schema} />
      </fieldset>
    );
  }
  const isUsed = at(form.values, form.place) !== undefined || within(form.mistakes, form.place).length > 0;
  return (
    <details className="group" open={isUsed || undefined}>
      <summary>{name}</summary>
      {about}
      {kind === "list" && <List {...form} name={name} schema={schema} />}
      {kind === "table" && <Table {...form} table={schema} />}
      {kind === "optional" && <Table {...form} table={tableOf(form.root, schema)} />}
    </details>
  );
}

/** A table's fields, and what is wrong with the table as such. */
function Table({ table, ...form }: Form & { table: Schema }) {
  return (
    <>
      <Wrong mistakes={ofTable(form.mistakes, form.place, Object.keys(table.properties ?? {}))} />
      <TableFields {...form} table={table} />
    </>
  );
}

/** A table that names a class: which one, and the fields that it has. */
function Variants({ name, schema, extra, ...form }: Form & { name: string; schema: Schema; extra?: ReactNode }) {
  const options = variantsOf(form.root, schema);
  const value = at(form.values, form.place);
  const usual = isTable(schema.default) ? schema.default.name : "";
  const chosen = String((isTable(value) ? value.name : undefined) ?? usual);
  const found = options.find(([option]) => option === chosen);
  const id = idOf([...form.place, "name"]);
  // The fields of another class are others: what was filled in does not go along.
  const choose = (next: string) => form.onChange(put(form.values, form.place, next === "" ? undefined : { name: next }));
  const change = (values: Values) => {
    const table = at(values, form.place);
    form.onChange(isTable(table) && table.name === undefined ? put(values, form.place, { name: chosen, ...table }) : values);
  };
  const shown = ["name", ...Object.keys(found?.[1].properties ?? {})];
  const wrong = within(form.mistakes, [...form.place, "name"]);
  return (
    <>
      <div className="field" data-wrong={wrong.length > 0 || undefined}>
        <label htmlFor={id} className={extra === undefined ? "visually-hidden" : undefined}>
          <code>{name}</code>
        </label>
        <span className="field-row">
          <select
            id={id}
            value={chosen}
            aria-describedby={`${id}-about`}
            aria-invalid={wrong.length > 0 || undefined}
            onChange={(event) => choose(event.target.value)}
          >
            {found === undefined && <option value={chosen}>{visible(chosen)}</option>}
            {options.map(([option]) => (
              <option key={option} value={option}>
                {option}
              </option>
            ))}
          </select>
          {extra}
        </span>
        <div id={`${id}-about`} className="hint">
          <Words text={found?.[1].description ?? ""} />
          <Wrong mistakes={wrong} />
        </div>
      </div>
      <Wrong mistakes={ofTable(form.mistakes, form.place, shown)} />
      {found && <TableFields {...form} table={{ ...found[1], required: [] }} onChange={change} />}
    </>
  );
}

/** Tables in an order, such as filters. */
function List({ name, schema, ...form }: Form & { name: string; schema: Schema }) {
  const item = schema.items ?? {};
  const value = at(form.values, form.place);
  const rows = Array.isArray(value) ? (value as unknown[]) : [];
  const [first] = variantsOf(form.root, item);
  const add = () => form.onChange(put(form.values, [...form.place, rows.length], { name: first?.[0] ?? "" }));
  return (
    <>
      <Wrong mistakes={form.mistakes.filter(({ place }) => place.length === form.place.length && place[0] === name)} />
      {rows.map((_, index) => (
        <Variants
          key={index}
          {...form}
          place={[...form.place, index]}
          name={`${name} ${index + 1}`}
          schema={item}
          extra={
            <button
              type="button"
              className="quiet-button icon-only"
              aria-label={`Remove ${name} ${index + 1}`}
              onClick={() => form.onChange(put(form.values, [...form.place, index], undefined))}
            >
              <Icon name="cross" />
            </button>
          }
        />
      ))}
      <p>
        <button type="button" className="button" onClick={add}>
          <Icon name="plus" /> Add
        </button>
      </p>
    </>
  );
}
