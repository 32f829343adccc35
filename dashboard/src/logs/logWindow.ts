/** The loaded part of a log: consecutive lines, oldest first. All functions are pure. */
import type { LogLine } from "../api/types";

/** Maximum number of lines that are kept. */
export const LINES_MAX = 100_000;

export interface LogWindow {
  lines: readonly LogLine[];
  /** True if there are older lines. */
  older: boolean;
}

export const EMPTY: LogWindow = { lines: [], older: false };

/** Append newer lines; the oldest ones are dropped. */
export function append(window: LogWindow, found: readonly LogLine[], most = LINES_MAX): LogWindow {
  const last = window.lines.at(-1)?.id ?? -1;
  const fresh = found.filter((line) => line.id > last);
  if (fresh.length === 0) return window;
  const lines = [...window.lines, ...fresh];
  if (lines.length <= most) return { ...window, lines };
  return { lines: lines.slice(-most), older: true };
}

/** Prepend older lines, as many as fit. */
export function prepend(window: LogWindow, found: readonly LogLine[], older: boolean, most = LINES_MAX): LogWindow {
  const first = window.lines[0]?.id ?? Infinity;
  const fresh = found.filter((line) => line.id < first);
  const room = Math.max(0, most - window.lines.length);
  if (fresh.length <= room) return { lines: [...fresh, ...window.lines], older };
  return { lines: [...fresh.slice(fresh.length - room), ...window.lines], older: true };
}

/** Return the index at which the line with an id is or would be. */
export function lineIndex(lines: readonly LogLine[], id: number): number {
  let low = 0;
  let high = lines.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((lines[middle]?.id ?? 0) < id) low = middle + 1;
    else high = middle;
  }
  return low;
}

export interface Matches {
  total: number;
  /** Ids of the newest matches, oldest first. */
  ids: readonly number[];
}

/** Return the match after (1) or before (-1) a line, cyclically; the newest if no line is given. */
export function nextMatch({ ids }: Matches, from: number | null, step: 1 | -1): number | null {
  if (ids.length === 0) return null;
  if (from === null) return ids.at(-1) ?? null;
  if (step > 0) return ids.find((id) => id > from) ?? ids[0] ?? null;
  return ids.findLast((id) => id < from) ?? ids.at(-1) ?? null;
}

/** Return the position among all matches, "3/17", or their number, "17". */
export function matchPosition({ total, ids }: Matches, at: number | null): string {
  const index = at === null ? -1 : ids.indexOf(at);
  return index < 0 ? `${total}` : `${total - ids.length + index + 1}/${total}`;
}

/** Split a text at the matches, ignoring case; every second part is a match. */
export function splitMatches(text: string, sought: string): string[] {
  if (sought === "") return [text];
  const found: string[] = [];
  const lower = text.toLowerCase();
  const want = sought.toLowerCase();
  if (lower.length !== text.length) return [text]; // the lower case of some letters is longer, so that positions would differ
  let from = 0;
  for (let at = lower.indexOf(want); at >= 0; at = lower.indexOf(want, from)) {
    found.push(text.slice(from, at), text.slice(at, at + want.length));
    from = at + want.length;
  }
  return [...found, text.slice(from)];
}
