/** How soon an item wants to be shown: at once, as something that charts draw and that can wait, or as anything else. */
export type Haste = "round" | "drawn" | "plain";

interface Waiting<T> {
  item: T;
  haste: Haste;
  since: number;
}

/**
 * Gathers items and hands them on in their order. Charts are given a batch at most once per `interval` ms, and so is
 * everything else; a new round waits for nothing but the charts' last batch. What nodes tell of themselves just before a
 * round closes would start that clock: so what is only drawn waits an interval, and goes with a round that comes meanwhile.
 */
export class Batcher<T> {
  private items: Waiting<T>[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;
  private last = -Infinity;
  private lastDrawn = -Infinity;

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
    return (isRound ? this.lastDrawn : Math.max(this.lastDrawn, drawn.since)) + this.interval;
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
    if (all && drawn !== -1) this.lastDrawn = now;
    if (ready.length > 0) this.flush(ready.map(({ item }) => item));
    if (this.items.length > 0) this.wait();
  }
}
