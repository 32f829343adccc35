/** Immutable values of the form: nested tables and lists. */
export type FieldPath = readonly (string | number)[];
export type Values = Record<string, unknown>;

export const isTable = (value: unknown): value is Values =>
  typeof value === "object" && value !== null && !Array.isArray(value);

export function getValue(values: unknown, place: FieldPath): unknown {
  return place.reduce<unknown>((inner, key) => {
    if (typeof key === "number") return Array.isArray(inner) ? inner[key] : undefined;
    return isTable(inner) && Object.hasOwn(inner, key) ? inner[key] : undefined;
  }, values);
}

/** Return the values with one changed; undefined removes it, and tables that become empty, but for those of a list. */
export function setValue(values: Values, place: FieldPath, value: unknown): Values {
  return (updated(values, place, value) ?? {}) as Values;
}

function updated(inner: unknown, [key, ...rest]: FieldPath, value: unknown): unknown {
  if (key === undefined) return value;
  if (typeof key === "number") {
    const list = Array.isArray(inner) ? [...(inner as unknown[])] : [];
    const next = updated(list[key], rest, value);
    if (next === undefined && rest.length === 0) list.splice(key, 1);
    else list[key] = next ?? {};
    return list.length === 0 ? undefined : list;
  }
  const table: Values = isTable(inner) ? { ...inner } : {};
  const next = updated(table[key], rest, value);
  if (next === undefined) delete table[key];
  else table[key] = next;
  return Object.keys(table).length === 0 ? undefined : table;
}

/** Parse the text of an input: a number if possible; undefined if it is empty. */
export function parseInput(text: string, numeric: boolean): string | number | undefined {
  if (text === "") return undefined;
  const number = Number(text);
  return numeric && text.trim() !== "" && Number.isFinite(number) ? number : text;
}

/** Parse texts separated by commas; undefined if there are none. */
export function parseWords(text: string): string[] | undefined {
  const found = text
    .split(",")
    .map((word) => word.trim())
    .filter(Boolean);
  return found.length === 0 ? undefined : found;
}

/** Parse lines `key = value`, in which a value is JSON or plain text. */
export function parsePairs(text: string): Values | undefined {
  const rows = text.split("\n").filter((line) => line.trim() !== "");
  if (rows.length === 0) return undefined;
  return Object.fromEntries(
    rows.map((row) => {
      const place = row.indexOf("=");
      return place < 0 ? [row.trim(), ""] : [row.slice(0, place).trim(), literal(row.slice(place + 1).trim())];
    }),
  );
}

function literal(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" ? text : value;
  } catch {
    return text;
  }
}

export const formatPairs = (value: unknown): string =>
  isTable(value)
    ? Object.entries(value)
        .map(([key, one]) => `${key} = ${typeof one === "string" && literal(one) === one ? one : JSON.stringify(one)}`)
        .join("\n")
    : "";
