/** Initial values of the form. */
import { resolve, variantsOf, withoutDefaults, type Schema } from "./schema";
import { isTable, setValue, type FieldPath, type Values } from "./values";

/** Maximum length of a draft in the address. */
export const DRAFT_CHARS_MAX = 6000;

/** Return the smallest job, with its algorithm and schedule. */
export const initialValues = (schema: Schema): Values => ({
  name: "",
  algorithm: schema.properties?.algorithm?.default,
  schedule: schema.properties?.schedule?.default,
});

/** Return a copy of another job with the next free name, and its algorithm and schedule. */
export function cloneValues(schema: Schema, spec: Values, taken: ReadonlySet<string>): Values {
  const { algorithm, schedule } = spec;
  const { name, ...rest } = withoutDefaults(schema, schema, { ...spec });
  return { name: nextName(String(name ?? ""), taken), ...rest, algorithm, schedule };
}

/** Return the class that a value names: a table with a name, or the name alone. */
export const nameOf = (value: unknown): string | undefined => {
  const name = isTable(value) ? value.name : value;
  return typeof name === "string" ? name : undefined;
};

/** Return the class of a table that names none; that of the schedule follows from the algorithm. */
export function usualName(root: Schema, schema: Schema, values: Values, place: FieldPath): string {
  const usual = nameOf(resolve(root, schema).default) ?? "";
  return place.length === 1 && place[0] === "schedule" ? (usualSchedule(root, nameOf(values.algorithm)) ?? usual) : usual;
}

function usualSchedule(root: Schema, algorithm: string | undefined): string | undefined {
  const field = root.properties?.algorithm ?? {};
  const name = algorithm ?? nameOf(resolve(root, field).default);
  return variantsOf(root, field).find(([option]) => option === name)?.[1]["x-schedule"];
}

/**
 * Return the values with another class at a place; empty: none. Another class has other fields, so the values are dropped.
 * A schedule that is the usual one of the algorithm becomes that of the next algorithm.
 */
export function chooseClass(root: Schema, values: Values, place: FieldPath, name: string): Values {
  const chosen = setValue(values, place, name === "" ? undefined : { name });
  if (place.length !== 1 || place[0] !== "algorithm") return chosen;
  const [before, after] = [usualSchedule(root, nameOf(values.algorithm)), usualSchedule(root, name)];
  const follows = before !== after && after !== undefined && nameOf(values.schedule) === before;
  return follows ? setValue(chosen, ["schedule"], { name: after }) : chosen;
}

const NAME_CHARS_MAX = 63;

export function nextName(name: string, taken: ReadonlySet<string>): string {
  const stem = name.replace(/-\d{1,4}$/, "");
  for (let number = 2; ; number++) {
    const end = `-${number}`;
    const next = stem.slice(0, NAME_CHARS_MAX - end.length) + end;
    if (!taken.has(next)) return next;
  }
}

export function parseDraft(text: string): Values | null {
  if (text === "") return null;
  try {
    const values: unknown = JSON.parse(text);
    return isTable(values) ? values : null;
  } catch {
    return null;
  }
}

export function serializeDraft(values: Values): string {
  const text = JSON.stringify(values);
  return text.length > DRAFT_CHARS_MAX ? "" : text;
}
