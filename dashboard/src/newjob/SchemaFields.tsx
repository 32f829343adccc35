import type { ReactNode } from "react";
import type { FieldError } from "../api/types";
import { escapeHidden } from "../format/text";
import { Icon } from "../ui/Icon";
import { FieldInput } from "./FieldInput";
import { errorsOfTable, errorsAt } from "./fieldErrors";
import { chooseClass, nameOf, usualName } from "./initialValues";
import { kindOf, describeField, resolve, tableOf, variantsOf, type Schema } from "./schema";
import { getValue, isTable, setValue, type FieldPath, type Values } from "./values";

export interface FormProps {
  root: Schema;
  place: FieldPath;
  values: Values;
  mistakes: readonly FieldError[];
  onChange: (values: Values) => void;
}

/** The fields of a table: simple ones first, then nested tables. */
export function TableFields({ table, ...form }: FormProps & { table: Schema }) {
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

interface FieldProps extends FormProps {
  name: string;
  schema: Schema;
  required: boolean;
}

/** A field with its name, description and errors. */
function Field({ name, schema, required, ...form }: FieldProps) {
  const place = [...form.place, name];
  const id = idOf(place);
  const wrong = errorsAt(form.mistakes, place);
  const about = describeField(schema);
  return (
    <div className="field" data-wrong={wrong.length > 0 || undefined}>
      <label htmlFor={id}>
        <code>{name}</code>
        {required && <span className="faint"> required</span>}
      </label>
      <FieldInput
        id={id}
        root={form.root}
        schema={schema}
        value={getValue(form.values, place)}
        onChange={(value) => form.onChange(setValue(form.values, place, value))}
        describedBy={`${id}-about`}
        invalid={wrong.length > 0}
      />
      <div id={`${id}-about`} className="hint">
        <Markdown text={about} />
        <FieldErrors mistakes={wrong} />
      </div>
    </div>
  );
}

/** A text with code between backticks. */
function Markdown({ text }: { text: string }) {
  return text.split("`").map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part));
}

const idOf = (place: FieldPath): string => `field-${place.join("-")}`;

function FieldErrors({ mistakes }: { mistakes: readonly FieldError[] }) {
  return mistakes.map(({ text, hint }, index) => (
    <p key={index} className="field-mistake">
      <Icon name="warning" /> {escapeHidden(text)}
      {hint && <span> – {escapeHidden(hint)}</span>}
    </p>
  ));
}

interface GroupProps extends FormProps {
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
  const isUsed = getValue(form.values, form.place) !== undefined || errorsAt(form.mistakes, form.place).length > 0;
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

/** The fields of a table and the errors of the table itself. */
function Table({ table, ...form }: FormProps & { table: Schema }) {
  return (
    <>
      <FieldErrors mistakes={errorsOfTable(form.mistakes, form.place, Object.keys(table.properties ?? {}))} />
      <TableFields {...form} table={table} />
    </>
  );
}

/** A table with a class name, and the fields of that class. */
function Variants({ name, schema, extra, ...form }: FormProps & { name: string; schema: Schema; extra?: ReactNode }) {
  const options = variantsOf(form.root, schema);
  const value = getValue(form.values, form.place);
  const chosen = nameOf(value) ?? usualName(form.root, schema, form.values, form.place);
  const found = options.find(([option]) => option === chosen);
  const id = idOf([...form.place, "name"]);
  const choose = (next: string) => form.onChange(chooseClass(form.root, form.values, form.place, next));
  const change = (values: Values) => {
    const table = getValue(values, form.place);
    form.onChange(isTable(table) && table.name === undefined ? setValue(values, form.place, { name: chosen, ...table }) : values);
  };
  const shown = ["name", ...Object.keys(found?.[1].properties ?? {})];
  const wrong = errorsAt(form.mistakes, [...form.place, "name"]);
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
            {found === undefined && <option value={chosen}>{escapeHidden(chosen)}</option>}
            {options.map(([option]) => (
              <option key={option} value={option}>
                {option}
              </option>
            ))}
          </select>
          {extra}
        </span>
        <div id={`${id}-about`} className="hint">
          <Markdown text={found?.[1].description ?? ""} />
          <FieldErrors mistakes={wrong} />
        </div>
      </div>
      <FieldErrors mistakes={errorsOfTable(form.mistakes, form.place, shown)} />
      {found && <TableFields {...form} table={{ ...found[1], required: [] }} onChange={change} />}
    </>
  );
}

/** A list of tables, such as filters or stages. */
function List({ name, schema, ...form }: FormProps & { name: string; schema: Schema }) {
  const item = schema.items ?? {};
  const value = getValue(form.values, form.place);
  const rows = Array.isArray(value) ? (value as unknown[]) : [];
  const [first] = variantsOf(form.root, item);
  const added = first === undefined ? {} : { name: first[0] };
  const add = () => form.onChange(setValue(form.values, [...form.place, rows.length], added));
  return (
    <>
      <FieldErrors mistakes={form.mistakes.filter(({ place }) => place.length === form.place.length && place[0] === name)} />
      {rows.map((_, index) => {
        const row = { ...form, place: [...form.place, index], name: `${name} ${index + 1}` };
        const remove = (
          <button
            type="button"
            className="quiet-button icon-only"
            aria-label={`Remove ${row.name}`}
            onClick={() => form.onChange(setValue(form.values, row.place, undefined))}
          >
            <Icon name="cross" />
          </button>
        );
        if (first !== undefined) return <Variants key={index} {...row} schema={item} extra={remove} />;
        return (
          <fieldset className="group" key={index}>
            <legend>
              {row.name} {remove}
            </legend>
            <Table {...row} table={resolve(form.root, item)} />
          </fieldset>
        );
      })}
      <p>
        <button type="button" className="button" onClick={add}>
          <Icon name="plus" /> Add
        </button>
      </p>
    </>
  );
}
