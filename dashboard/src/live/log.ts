/** The last deltas, kept so that a snapshot that was on its way meanwhile can be brought up to date. */
import type { Delta } from "./delta";

const KEPT = 4000;
/** How long snapshots wait for a stream that begins (ms). Beyond, they are fetched without one, and once more when it has begun. */
const WAIT_MS = 1500;

export class DeltaLog {
  private first = 0;
  private items: Delta[] = [];
  /** How often a stream has begun. */
  private begun = 0;
  private waiting: Promise<void> | null = null;
  private go: () => void = () => undefined;

  constructor(private readonly waitMs: number = WAIT_MS) {}

  push(delta: Delta): void {
    this.items.push(delta);
    if (this.items.length <= 2 * KEPT) return;
    this.first += this.items.length - KEPT;
    this.items = this.items.slice(-KEPT);
  }

  /** A stream is being opened: snapshots wait for its first word, since what they fetched before would be fetched again. */
  opening(): void {
    this.go();
    this.waiting = new Promise((resolve) => {
      const timer = setTimeout(() => this.go(), this.waitMs);
      this.go = () => {
        clearTimeout(timer);
        this.waiting = null;
        this.go = () => undefined;
        resolve();
      };
    });
  }

  /** The stream has said its first word: it tells of everything from now on. */
  began(): void {
    this.begun += 1;
    this.go();
  }

  /** There is no stream at the moment. */
  failed(): void {
    this.go();
  }

  /**
   * Fetches, then applies every delta that arrived after the fetch began; `merge` must be idempotent. What was fetched
   * while a stream began may have missed what lies between, and is fetched again.
   */
  async snapshot<T>(fetch: () => Promise<T>, merge: (value: T, delta: Delta) => T): Promise<T> {
    for (;;) {
      while (this.waiting !== null) await this.waiting;
      const begun = this.begun;
      const mark = this.first + this.items.length;
      const value = await fetch();
      if (begun === this.begun) return this.items.slice(Math.max(0, mark - this.first)).reduce(merge, value);
    }
  }
}

/** One log per tab, as there is one stream per tab. */
export const deltas = new DeltaLog();
