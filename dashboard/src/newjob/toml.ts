/** Values as a TOML file: a table's own keys first, then its tables. */
import { isTable, type Values } from "./values";

export function writeToml(values: Values): string {
  return tables(values, []).join("\n\n") + "\n";
}

function tables(values: Values, path: string[]): string[] {
  const entries = Object.entries(values);
  const own = entries.filter(([, value]) => !isTable(value) && !isTables(value));
  const lines = own.map(([key, value]) => `${written(key)} = ${literal(value)}`);
  const head = path.length > 0 ? [`[${path.join(".")}]`] : [];
  const inner = entries.flatMap(([key, value]) => {
    const place = [...path, written(key)];
    if (isTable(value)) return tables(value, place);
    return isTables(value) ? value.flatMap((one) => listed(one, place)) : [];
  });
  // A table that only holds tables needs no line of its own.
  const first = lines.length > 0 || inner.length === 0 ? [[...head, ...lines].join("\n")] : [];
  return [...first.filter((text) => text !== ""), ...inner];
}

const listed = (one: Values, place: string[]): string[] => {
  const lines = Object.entries(one).map(([key, value]) => `${written(key)} = ${literal(value)}`);
  return [[`[[${place.join(".")}]]`, ...lines].join("\n")];
};

const isTables = (value: unknown): value is Values[] =>
  Array.isArray(value) && value.length > 0 && value.every(isTable);

const written = (key: string): string => (/^[A-Za-z0-9_-]+$/.test(key) ? key : quoted(key));

function literal(value: unknown): string {
  if (typeof value === "string") return quoted(value);
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (isTable(value)) {
    const inner = Object.entries(value).map(([key, one]) => `${written(key)} = ${literal(one)}`);
    return inner.length === 0 ? "{}" : `{ ${inner.join(", ")} }`;
  }
  // 1e-8 is TOML, 1e+21 is too; a whole number stays one.
  return String(value);
}

/** A basic string; what JSON leaves as it is, but TOML forbids, is escaped besides. */
const quoted = (text: string): string => JSON.stringify(text).replace(/\u007f/g, "\\u007F");
