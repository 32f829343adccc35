/** Values of a form: nested tables, of which every change makes new ones. */
export type Place = readonly (string | number)[];
export type Values = Record<string, unknown>;

export const isTable = (value: unknown): value is Values =>
  typeof value === "object" && value !== null && !Array.isArray(value);

export function at(values: unknown, place: Place): unknown {
  return place.reduce<unknown>((inner, key) => {
    if (typeof key === "number") return Array.isArray(inner) ? inner[key] : undefined;
    return isTable(inner) && Object.hasOwn(inner, key) ? inner[key] : undefined;
  }, values);
}

/** The same with one value changed; undefined takes it out, and tables that are empty then. */
export function put(values: Values, place: Place, value: unknown): Values {
  return (changed(values, place, value) ?? {}) as Values;
}

function changed(inner: unknown, [key, ...rest]: Place, value: unknown): unknown {
  if (key === undefined) return value;
  if (typeof key === "number") {
    const list = Array.isArray(inner) ? [...(inner as unknown[])] : [];
    const next = changed(list[key], rest, value);
    if (next === undefined) list.splice(key, 1);
    else list[key] = next;
    return list.length === 0 ? undefined : list;
  }
  const table: Values = isTable(inner) ? { ...inner } : {};
  const next = changed(table[key], rest, value);
  if (next === undefined) delete table[key];
  else table[key] = next;
  return Object.keys(table).length === 0 ? undefined : table;
}

/** What somebody typed into a field: a number where it can be one; undefined: nothing. */
export function typed(text: string, numeric: boolean): string | number | undefined {
  if (text === "") return undefined;
  const number = Number(text);
  return numeric && text.trim() !== "" && Number.isFinite(number) ? number : text;
}

/** Words on one line, between commas; undefined: none. */
export function wordsOf(text: string): string[] | undefined {
  const found = text
    .split(",")
    .map((word) => word.trim())
    .filter(Boolean);
  return found.length === 0 ? undefined : found;
}

/** Keys of one's own, a line each: `key = value`; a value is JSON, or a text as it stands. */
export function freeOf(text: string): Values | undefined {
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

export const freeText = (value: unknown): string =>
  isTable(value)
    ? Object.entries(value)
        .map(([key, one]) => `${key} = ${typeof one === "string" && literal(one) === one ? one : JSON.stringify(one)}`)
        .join("\n")
    : "";
