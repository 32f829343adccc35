/** CSV files (RFC 4180). */

export type CsvCell = string | number | null | undefined;

/** Return the CSV text. NaN and Infinity are written as such, unknown values are empty. */
export function toCsv(head: string[], rows: CsvCell[][]): string {
  return [head, ...rows].map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

function field(cell: CsvCell): string {
  if (cell === null || cell === undefined) return "";
  if (typeof cell === "number") return String(cell);
  // A spreadsheet must not interpret a name as a formula.
  const text = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Download a text or an image as a file; `kind` is the extension. */
export function saveFile(name: string, content: string | Blob, kind: "csv" | "svg" | "png" = "csv"): void {
  const blob = typeof content === "string" ? new Blob([content], { type: TYPES[kind] }) : content;
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = `${name.replace(/[^\w.-]+/g, "-")}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const TYPES = { csv: "text/csv;charset=utf-8", svg: "image/svg+xml", png: "image/png" };
