/** What a form begins with. */
import { withoutDefaults, type Schema } from "./schema";
import { isTable, type Values } from "./values";

/** A draft that stands in an address; longer ones would be cut by something on their way. */
export const ADDRESS_CHARS_MAX = 6000;

/** The smallest job, its protocol said aloud. */
export const start = (schema: Schema): Values => ({
  name: "",
  algorithm: schema.properties?.algorithm?.default,
  schedule: schema.properties?.schedule?.default,
});

/** Another job's file under the next name that is free; its protocol is said aloud. */
export function copyOf(schema: Schema, spec: Values, taken: ReadonlySet<string>): Values {
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

export function fromAddress(text: string): Values | null {
  if (text === "") return null;
  try {
    const values: unknown = JSON.parse(text);
    return isTable(values) ? values : null;
  } catch {
    return null;
  }
}

export function toAddress(values: Values): string {
  const text = JSON.stringify(values);
  return text.length > ADDRESS_CHARS_MAX ? "" : text;
}
