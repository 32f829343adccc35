/** The last deltas, kept so that a snapshot that was on its way meanwhile can be brought up to date. */
import type { Delta } from "./delta";

const KEPT = 4000;

export class DeltaLog {
  private first = 0;
  private items: Delta[] = [];

  push(delta: Delta): void {
    this.items.push(delta);
    if (this.items.length <= 2 * KEPT) return;
    this.first += this.items.length - KEPT;
    this.items = this.items.slice(-KEPT);
  }

  /** Fetches, then applies every delta that arrived after the fetch began; `merge` must be idempotent. */
  async snapshot<T>(fetch: () => Promise<T>, merge: (value: T, delta: Delta) => T): Promise<T> {
    const mark = this.first + this.items.length;
    const value = await fetch();
    return this.items.slice(Math.max(0, mark - this.first)).reduce(merge, value);
  }
}

/** One log per tab, as there is one stream per tab. */
export const deltas = new DeltaLog();
