/** The part of a log that a page holds: consecutive lines, oldest first. All functions are pure. */
import type { LogLine } from "../api/types";

/** So many lines a page holds. */
export const LINES_MAX = 100_000;

export interface LogWindow {
  lines: readonly LogLine[];
  /** Whether there are lines before these. */
  older: boolean;
}

export const EMPTY: LogWindow = { lines: [], older: false };

/** With the lines that came after; the oldest give way. */
export function append(window: LogWindow, found: readonly LogLine[], most = LINES_MAX): LogWindow {
  const last = window.lines.at(-1)?.id ?? -1;
  const fresh = found.filter((line) => line.id > last);
  if (fresh.length === 0) return window;
  const lines = [...window.lines, ...fresh];
  if (lines.length <= most) return { ...window, lines };
  return { lines: lines.slice(-most), older: true };
}

/** With the lines that stand before; as many of them as there is room for. */
export function prepend(window: LogWindow, found: readonly LogLine[], older: boolean, most = LINES_MAX): LogWindow {
  const first = window.lines[0]?.id ?? Infinity;
  const fresh = found.filter((line) => line.id < first);
  const room = Math.max(0, most - window.lines.length);
  if (fresh.length <= room) return { lines: [...fresh, ...window.lines], older };
  return { lines: [...fresh.slice(fresh.length - room), ...window.lines], older: true };
}

/** Where the line with that id stands, or would stand. */
export function place(lines: readonly LogLine[], id: number): number {
  let low = 0;
  let high = lines.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((lines[middle]?.id ?? 0) < id) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The rows to draw: those on the screen, and some on either side. */
export function onScreen(top: number, height: number, row: number, count: number, spare = 12): [number, number] {
  const first = Math.max(0, Math.floor(top / row) - spare);
  return [Math.min(first, count), Math.min(count, Math.ceil((top + height) / row) + spare)];
}

export interface Matches {
  total: number;
  /** The newest that hold the text, oldest first. */
  ids: readonly number[];
}

/** The match after (step 1) or before (-1) a line, round and round; without a line the newest. */
export function nextMatch({ ids }: Matches, from: number | null, step: 1 | -1): number | null {
  if (ids.length === 0) return null;
  if (from === null) return ids.at(-1) ?? null;
  if (step > 0) return ids.find((id) => id > from) ?? ids[0] ?? null;
  return ids.findLast((id) => id < from) ?? ids.at(-1) ?? null;
}

/** "3/17": which of all matches a line is; "17" if it is none. */
export function counted({ total, ids }: Matches, at: number | null): string {
  const index = at === null ? -1 : ids.indexOf(at);
  return index < 0 ? `${total}` : `${total - ids.length + index + 1}/${total}`;
}

/** A text in pieces, every other of which is what is sought, in capitals or not. */
export function pieces(text: string, sought: string): string[] {
  if (sought === "") return [text];
  const found: string[] = [];
  const lower = text.toLowerCase();
  const want = sought.toLowerCase();
  if (lower.length !== text.length) return [text]; // some letters have longer lower forms: places would not fit
  let from = 0;
  for (let at = lower.indexOf(want); at >= 0; at = lower.indexOf(want, from)) {
    found.push(text.slice(from, at), text.slice(at, at + want.length));
    from = at + want.length;
  }
  return [...found, text.slice(from)];
}
