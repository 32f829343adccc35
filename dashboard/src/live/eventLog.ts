import type { LiveEvent } from "./events";
import type { Merge } from "./merge";

const LENGTH = 4000;
/** Time that snapshots wait for a stream to start (ms). Afterwards they are fetched without it, and again when it has started. */
const WAIT_MS = 1500;

/** Log of the last events, with which a snapshot that was being fetched meanwhile is brought up to date. */
export class EventLog {
  private first = 0;
  private events: LiveEvent[] = [];
  /** Number of streams that have started. */
  private starts = 0;
  private waiting: Promise<void> | null = null;
  private release: () => void = () => undefined;

  constructor(private readonly waitMs: number = WAIT_MS) {}

  push(event: LiveEvent): void {
    this.events.push(event);
    if (this.events.length <= 2 * LENGTH) return;
    this.first += this.events.length - LENGTH;
    this.events = this.events.slice(-LENGTH);
  }

  /** A stream is being opened: snapshots wait for its first event, because earlier ones would have to be fetched again. */
  opening(): void {
    this.release();
    this.waiting = new Promise((resolve) => {
      const timer = setTimeout(() => this.release(), this.waitMs);
      this.release = () => {
        clearTimeout(timer);
        this.waiting = null;
        this.release = () => undefined;
        resolve();
      };
    });
  }

  /** The stream has sent its first event and reports all later changes. */
  started(): void {
    this.starts += 1;
    this.release();
  }

  /** The stream could not be opened or has broken. */
  failed(): void {
    this.release();
  }

  /**
   * Fetch an answer and apply every event that has arrived since the fetch began; `merge` must be idempotent. If a stream
   * has started during the fetch, events may be missing, and the answer is fetched again.
   */
  async snapshot<T>(fetch: () => Promise<T>, merge: Merge<T>): Promise<T> {
    for (;;) {
      while (this.waiting !== null) await this.waiting;
      const starts = this.starts;
      const position = this.first + this.events.length;
      const value = await fetch();
      if (starts === this.starts) return this.events.slice(Math.max(0, position - this.first)).reduce(merge, value);
    }
  }
}

/** The tab's log: there is one stream per tab. */
export const eventLog = new EventLog();
