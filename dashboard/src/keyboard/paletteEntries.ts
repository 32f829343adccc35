/** Entries of the command palette. */

export interface PaletteEntry {
  id: string;
  text: string;
  /** The kind of the entry, such as "job". */
  kind: string;
  run: () => void;
}

export const SHOWN = 12;

/** Return the entries that contain every word; those that start with the first word come first. */
export function filterEntries(entries: readonly PaletteEntry[], typed: string): PaletteEntry[] {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const [first = ""] = words;
  const fit = entries.filter(({ text, kind }) => {
    const all = `${text} ${kind}`.toLowerCase();
    return words.every((word) => all.includes(word));
  });
  const begins = ({ text }: PaletteEntry) => Number(!text.toLowerCase().startsWith(first));
  return fit.toSorted((a, b) => begins(a) - begins(b)).slice(0, SHOWN);
}
