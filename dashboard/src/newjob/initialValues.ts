/** Initial values of the form. */
import { withoutDefaults, type Schema } from "./schema";
import { isTable, type Values } from "./values";

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
