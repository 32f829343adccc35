/** How soon an item wants to be shown: at once, as something that charts draw and that can wait, or as anything else. */
export type Haste = "round" | "drawn" | "plain";

interface Waiting<T> {
  item: T;
  haste: Haste;
  since: number;
}

/** Charts are drawn at most so often in as many intervals. */
const DRAWN_MAX = 4;
/** What is no round is drawn by itself only while there were fewer: there must be room for a round. */
const ALONE_MAX = 2;

/**
 * Gathers items and hands them on in their order: rounds at most once per `interval` ms, everything else likewise, and to
 * charts four batches in four intervals. A new round waits for nothing but the last round. What nodes tell of themselves
 * before a round closes waits an interval and goes with a round that comes meanwhile; by itself it is drawn only where
 * that cannot make a round wait.
 */
export class Batcher<T> {
  private items: Waiting<T>[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;
  private last = -Infinity;
  private lastRound = -Infinity;
  /** When charts were given their last batches. */
  private drawn: number[] = [];

  constructor(
    private readonly flush: (items: T[]) => void,
    private readonly interval: number,
    private readonly haste: (item: T) => Haste = () => "round",
  ) {}

  push(item: T): void {
    this.items.push({ item, haste: this.haste(item), since: performance.now() });
    this.wait();
  }

  stop(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
  }

  /** Even the first waits for the end of this task, so that events that arrived together are drawn together. */
  private wait(): void {
    this.stop();
    const news = this.items[0]?.haste === "plain" ? this.last + this.interval : Infinity;
    this.timer = setTimeout(() => this.run(), Math.max(0, Math.min(news, this.drawnAt()) - performance.now()));
  }

  /** When charts may be given what waits for them. */
  private drawnAt(): number {
    const drawn = this.items.find(({ haste }) => haste !== "plain");
    if (drawn === undefined) return Infinity;
    const isRound = this.items.some(({ haste }) => haste === "round");
    if (isRound) return Math.max(this.lastRound + this.interval, this.room(DRAWN_MAX));
    const last = this.drawn.at(-1) ?? -Infinity;
    return Math.max(Math.max(last, drawn.since) + this.interval, this.room(ALONE_MAX));
  }

  /** When fewer than so many batches lie within the time that four may take. */
  private room(most: number): number {
    return (this.drawn.at(-most) ?? -Infinity) + DRAWN_MAX * this.interval;
  }

  private run(): void {
    this.timer = undefined;
    const now = performance.now();
    const drawn = this.items.findIndex(({ haste }) => haste !== "plain");
    // A timer may ring a little early.
    const all = drawn === -1 || now >= this.drawnAt() - 1;
    const ready = all ? this.items : this.items.slice(0, drawn);
    this.items = all ? [] : this.items.slice(drawn);
    this.last = now;
    if (all && drawn !== -1) {
      this.drawn = [...this.drawn, now].slice(-DRAWN_MAX);
      if (ready.some(({ haste }) => haste === "round")) this.lastRound = now;
    }
    if (ready.length > 0) this.flush(ready.map(({ item }) => item));
    if (this.items.length > 0) this.wait();
  }
}
