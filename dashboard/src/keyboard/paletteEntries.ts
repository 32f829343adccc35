/** What the palette offers, and which of it fits the words that were typed. */

export interface Entry {
  id: string;
  text: string;
  /** What kind of thing it is. */
  kind: string;
  run: () => void;
}

export const SHOWN = 12;

/** Those that hold every word, those that begin with the first one before the others, each in their own order. */
export function fitting(entries: readonly Entry[], typed: string): Entry[] {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const [first = ""] = words;
  const fit = entries.filter(({ text, kind }) => {
    const all = `${text} ${kind}`.toLowerCase();
    return words.every((word) => all.includes(word));
  });
  const begins = ({ text }: Entry) => Number(!text.toLowerCase().startsWith(first));
  return fit.toSorted((a, b) => begins(a) - begins(b)).slice(0, SHOWN);
}
