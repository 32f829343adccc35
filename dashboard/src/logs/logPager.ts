/** Loader of a log, page by page, one request at a time. */
import type { LogLine } from "../api/types";
import { append, EMPTY, LINES_MAX, prepend, type LogWindow } from "./logWindow";

export const PAGE = 2000;

export interface PageRequest {
  after?: number;
  before?: number;
  limit: number;
}

export interface Page {
  lines: LogLine[];
  older: boolean;
}

export interface PagerState {
  window: LogWindow;
  ready: boolean;
  error: Error | null;
}

export class LogPager {
  private state: PagerState = { window: EMPTY, ready: false, error: null };
  private listeners = new Set<() => void>();
  private last: Promise<void> = Promise.resolve();
  private isQueued = false;
  private closed = false;

  constructor(private readonly fetch: (ask: PageRequest) => Promise<Page>) {}

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly get = (): PagerState => this.state;

  /** Load the newest lines, or those that were added since. Repeated calls before the request starts are one. */
  readonly loadNewer = (): void => {
    if (this.isQueued) return;
    this.isQueued = true;
    this.enqueue(async () => {
      this.isQueued = false;
      const { window, ready } = this.state;
      if (!ready) {
        const { lines, older } = await this.fetch({ limit: PAGE });
        this.setState({ window: { lines, older }, ready: true, error: null });
        return;
      }
      for (let page = PAGE, now = window; page === PAGE; ) {
        const { lines } = await this.fetch({ after: now.lines.at(-1)?.id ?? 0, limit: PAGE });
        page = lines.length;
        now = append(now, lines);
        this.setState({ window: now, ready: true, error: null });
      }
    });
  };

  /** Load the lines before the loaded ones. */
  readonly loadOlder = (): Promise<void> =>
    this.enqueue(async () => {
      await this.loadPrevious();
    });

  /** Load older lines until a line is loaded. */
  readonly loadUntil = (id: number): Promise<void> =>
    this.enqueue(async () => {
      while (id < (this.state.window.lines[0]?.id ?? 0) && (await this.loadPrevious()));
    });

  close(): void {
    this.closed = true;
    this.listeners.clear();
  }

  /** Load one page of older lines; return whether there are more. */
  private async loadPrevious(): Promise<boolean> {
    const { window, ready } = this.state;
    const first = window.lines[0];
    if (!ready || !window.older || first === undefined || window.lines.length >= LINES_MAX) return false;
    const { lines, older } = await this.fetch({ before: first.id, limit: PAGE });
    this.setState({ window: prepend(window, lines, older), ready: true, error: null });
    return lines.length > 0 && !this.closed;
  }

  private enqueue(work: () => Promise<void>): Promise<void> {
    this.last = this.last.then(async () => {
      if (this.closed) return;
      try {
        await work();
      } catch (error) {
        this.setState({ ...this.state, error: error as Error });
      }
    });
    return this.last;
  }

  private setState(reading: PagerState): void {
    if (this.closed) return;
    this.state = reading;
    for (const listener of this.listeners) listener();
  }
}
