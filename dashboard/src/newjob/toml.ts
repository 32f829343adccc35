/** Formatter of TOML: a table's own keys first, then nested tables. */
import { isTable, type Values } from "./values";

export function writeToml(values: Values): string {
  return formatTables(values, []).join("\n\n") + "\n";
}

function formatTables(values: Values, path: string[]): string[] {
  const entries = Object.entries(values);
  const own = entries.filter(([, value]) => !isTable(value) && !isTables(value));
  const lines = own.map(([key, value]) => `${formatKey(key)} = ${formatValue(value)}`);
  const head = path.length > 0 ? [`[${path.join(".")}]`] : [];
  const inner = entries.flatMap(([key, value]) => {
    const place = [...path, formatKey(key)];
    if (isTable(value)) return formatTables(value, place);
    return isTables(value) ? value.flatMap((one) => formatListItem(one, place)) : [];
  });
  // A table that contains only tables needs no header.
  const first = lines.length > 0 || inner.length === 0 ? [[...head, ...lines].join("\n")] : [];
  return [...first.filter((text) => text !== ""), ...inner];
}

const formatListItem = (one: Values, place: string[]): string[] => {
  const lines = Object.entries(one).map(([key, value]) => `${formatKey(key)} = ${formatValue(value)}`);
  return [[`[[${place.join(".")}]]`, ...lines].join("\n")];
};

const isTables = (value: unknown): value is Values[] =>
  Array.isArray(value) && value.length > 0 && value.every(isTable);

const formatKey = (key: string): string => (/^[A-Za-z0-9_-]+$/.test(key) ? key : formatString(key));

function formatValue(value: unknown): string {
  if (typeof value === "string") return formatString(value);
  if (Array.isArray(value)) return `[${value.map(formatValue).join(", ")}]`;
  if (isTable(value)) {
    const inner = Object.entries(value).map(([key, one]) => `${formatKey(key)} = ${formatValue(one)}`);
    return inner.length === 0 ? "{}" : `{ ${inner.join(", ")} }`;
  }
  // 1e-8 and 1e+21 are valid TOML; integers stay integers.
  return String(value);
}

/** Return a basic string; TOML also forbids U+007F, which JSON allows. */
const formatString = (text: string): string => JSON.stringify(text).replace(/\u007f/g, "\\u007F");
