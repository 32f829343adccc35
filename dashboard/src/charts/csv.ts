/** A chart's data as a file for spreadsheets and scripts (RFC 4180). */

export type CsvCell = string | number | null | undefined;

/** Head and rows; numbers as they are, "NaN" and "Infinity" included; what is not known is empty. */
export function toCsv(head: string[], rows: CsvCell[][]): string {
  return [head, ...rows].map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

function field(cell: CsvCell): string {
  if (cell === null || cell === undefined) return "";
  if (typeof cell === "number") return String(cell);
  // A spreadsheet must not take a name for a formula.
  const text = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Lets the browser save a text or a picture under a name; `kind`: the end of the file's name. */
export function save(name: string, content: string | Blob, kind: "csv" | "svg" | "png" = "csv"): void {
  const blob = typeof content === "string" ? new Blob([content], { type: TYPES[kind] }) : content;
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = `${name.replace(/[^\w.-]+/g, "-")}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const TYPES = { csv: "text/csv;charset=utf-8", svg: "image/svg+xml", png: "image/png" };
