/** The part of JSON Schema that the form uses. */
export interface Schema {
  type?: string;
  title?: string;
  description?: string;
  default?: unknown;
  const?: unknown;
  enum?: unknown[];
  pattern?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  oneOf?: Schema[];
  anyOf?: Schema[];
  $ref?: string;
  $defs?: Record<string, Schema>;
  additionalProperties?: boolean | Schema;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  maxLength?: number;
  /** For an algorithm: the schedule of a job without one in its file. */
  "x-schedule"?: string;
}

/**
 * text, number: input; flag: checkbox; choice: select; table: fields; variants: table with a class name and its fields;
 * list: list of variants; words: list of texts; optional: table that may be missing; free: arbitrary keys.
 */
export type Kind = "text" | "number" | "flag" | "choice" | "table" | "variants" | "list" | "words" | "optional" | "free";

export function resolve(root: Schema, schema: Schema): Schema {
  const name = schema.$ref?.split("/").at(-1);
  return name === undefined ? schema : { ...root.$defs?.[name], ...withoutRef(schema) };
}

function withoutRef({ $ref: _, ...rest }: Schema): Schema {
  return rest;
}

export function kindOf(root: Schema, given: Schema): Kind {
  const schema = resolve(root, given);
  if (schema.oneOf) return "variants";
  if (schema.anyOf?.some(({ type }) => type === "null")) return "optional";
  if (schema.type === "array") return schema.items?.type === "string" ? "words" : "list";
  if (schema.enum) return "choice";
  if (schema.type === "boolean") return "flag";
  if (schema.type === "object") return schema.properties ? "table" : "free";
  return schema.type === "number" || schema.type === "integer" ? "number" : "text";
}

/** Return the variants of a table: name, and fields without the name. */
export function variantsOf(root: Schema, given: Schema): [name: string, schema: Schema][] {
  return (resolve(root, given).oneOf ?? []).map((one) => {
    const schema = resolve(root, one);
    const { name, ...properties } = schema.properties ?? {};
    return [String(name?.const ?? ""), { ...schema, properties }];
  });
}

/** Return the table of an optional one. */
export const tableOf = (root: Schema, given: Schema): Schema =>
  resolve(root, resolve(root, given).anyOf?.find(({ type }) => type !== "null") ?? {});

/** Describe the range of a number; empty: any. */
export function describeRange({ minimum, maximum, exclusiveMinimum, exclusiveMaximum }: Schema): string {
  // A bound that only follows from the size of an integer is not shown.
  if (Math.max(maximum ?? 0, exclusiveMaximum ?? 0) > Number.MAX_SAFE_INTEGER) return describeRange({ minimum, exclusiveMinimum });
  const low = minimum !== undefined ? `from ${minimum}` : exclusiveMinimum !== undefined ? `above ${exclusiveMinimum}` : "";
  const high = maximum !== undefined ? `to ${maximum}` : exclusiveMaximum !== undefined ? `below ${exclusiveMaximum}` : "";
  return [low, high].filter(Boolean).join(" ");
}

/** Describe a field: its description, and the range of its numbers. */
export function describeField(schema: Schema): string {
  const range = describeRange(schema);
  const about = schema.description ?? "";
  return range === "" ? about : [about.replace(/\.$/, ""), range].filter(Boolean).join("; ");
}

/** Return the values without those that are equal to the defaults. */
export function withoutDefaults(root: Schema, given: Schema, values: Record<string, unknown>): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(values)) {
    const field = resolve(root, given).properties?.[key];
    if (value === null || same(value, field && resolve(root, field).default)) continue;
    const kind = field && kindOf(root, field);
    if (field && (kind === "table" || kind === "optional")) {
      const table = kind === "table" ? field : tableOf(root, field);
      const inner = withoutDefaults(root, table, value as Record<string, unknown>);
      if (kind === "optional" || Object.keys(inner).length > 0) found[key] = inner;
    } else if (!isEmpty(value)) found[key] = value;
  }
  return found;
}

const same = (one: unknown, other: unknown): boolean => JSON.stringify(one) === JSON.stringify(other);

const isEmpty = (value: unknown): boolean =>
  typeof value === "object" && value !== null && Object.keys(value).length === 0;
