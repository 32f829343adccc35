/** Reads a log page by page, one request after the other, and keeps what it has read. */
import type { LogLine } from "../api/types";
import { append, EMPTY, LINES_MAX, prepend, type LogWindow } from "./window";

export const PAGE = 2000;

export interface Ask {
  after?: number;
  before?: number;
  limit: number;
}

export interface Page {
  lines: LogLine[];
  older: boolean;
}

export interface Reading {
  window: LogWindow;
  ready: boolean;
  error: Error | null;
}

export class LogReader {
  private reading: Reading = { window: EMPTY, ready: false, error: null };
  private listeners = new Set<() => void>();
  private last: Promise<void> = Promise.resolve();
  private waits = false;
  private closed = false;

  constructor(private readonly fetch: (ask: Ask) => Promise<Page>) {}

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly get = (): Reading => this.reading;

  /** The newest lines; or if they are there, those that have come since. Asked again while it waits, it is one. */
  readonly newer = (): void => {
    if (this.waits) return;
    this.waits = true;
    this.then(async () => {
      this.waits = false;
      const { window, ready } = this.reading;
      if (!ready) {
        const { lines, older } = await this.fetch({ limit: PAGE });
        this.become({ window: { lines, older }, ready: true, error: null });
        return;
      }
      for (let page = PAGE, now = window; page === PAGE; ) {
        const { lines } = await this.fetch({ after: now.lines.at(-1)?.id ?? 0, limit: PAGE });
        page = lines.length;
        now = append(now, lines);
        this.become({ window: now, ready: true, error: null });
      }
    });
  };

  /** The lines before those that are there. */
  readonly older = (): Promise<void> =>
    this.then(async () => {
      await this.previous();
    });

  /** As many older lines as it takes until that one is there. */
  readonly until = (id: number): Promise<void> =>
    this.then(async () => {
      while (id < (this.reading.window.lines[0]?.id ?? 0) && (await this.previous()));
    });

  close(): void {
    this.closed = true;
    this.listeners.clear();
  }

  /** Whether there was more to be had. */
  private async previous(): Promise<boolean> {
    const { window, ready } = this.reading;
    const first = window.lines[0];
    if (!ready || !window.older || first === undefined || window.lines.length >= LINES_MAX) return false;
    const { lines, older } = await this.fetch({ before: first.id, limit: PAGE });
    this.become({ window: prepend(window, lines, older), ready: true, error: null });
    return lines.length > 0 && !this.closed;
  }

  private then(work: () => Promise<void>): Promise<void> {
    this.last = this.last.then(async () => {
      if (this.closed) return;
      try {
        await work();
      } catch (error) {
        this.become({ ...this.reading, error: error as Error });
      }
    });
    return this.last;
  }

  private become(reading: Reading): void {
    if (this.closed) return;
    this.reading = reading;
    for (const listener of this.listeners) listener();
  }
}
