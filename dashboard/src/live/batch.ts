/** Gathers items and hands them on at most once per `interval` ms; the first of a quiet time goes out at once. */
export class Batcher<T> {
  private items: T[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;
  private last = -Infinity;

  constructor(
    private readonly flush: (items: T[]) => void,
    private readonly interval: number,
  ) {}

  push(item: T): void {
    this.items.push(item);
    // Even the first waits for the end of this task, so that events that arrived together are drawn together.
    this.timer ??= setTimeout(() => this.run(), Math.max(0, this.last + this.interval - performance.now()));
  }

  stop(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
  }

  private run(): void {
    this.timer = undefined;
    this.last = performance.now();
    const items = this.items;
    this.items = [];
    this.flush(items);
  }
}
