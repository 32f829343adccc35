/** Priority of an item: a new version at once, other chart data after an interval, everything else per interval. */
export type Priority = "version" | "chart" | "normal";

interface Pending<T> {
  item: T;
  priority: Priority;
  since: number;
}

/** Number of chart updates in this number of intervals, at most. */
const CHART_BATCHES_MAX = 4;
/** Chart data without a new version is flushed only while there were fewer updates than this, to leave room for a version. */
const CHART_ONLY_MAX = 2;

/**
 * Collects items and passes them on in order: versions at most once per `interval` ms, normal items likewise, and at most
 * four batches of chart data in four intervals. A version waits only for the previous version. Metrics that arrive shortly
 * before a version wait one interval, so that both are drawn together.
 */
export class Batcher<T> {
  private pending: Pending<T>[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;
  private lastFlush = -Infinity;
  private lastVersion = -Infinity;
  /** Times of the last batches with chart data. */
  private chartFlushes: number[] = [];

  constructor(
    private readonly flush: (items: T[]) => void,
    private readonly interval: number,
    private readonly priorityOf: (item: T) => Priority = () => "version",
  ) {}

  push(item: T): void {
    this.pending.push({ item, priority: this.priorityOf(item), since: performance.now() });
    this.schedule();
  }

  stop(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
  }

  /** Even the first item waits for the end of this task, so that events that arrive together are drawn together. */
  private schedule(): void {
    this.stop();
    const normalDue = this.pending[0]?.priority === "normal" ? this.lastFlush + this.interval : Infinity;
    this.timer = setTimeout(() => this.run(), Math.max(0, Math.min(normalDue, this.chartDue()) - performance.now()));
  }

  /** Return the time at which pending chart data may be flushed. */
  private chartDue(): number {
    const first = this.pending.find(({ priority }) => priority !== "normal");
    if (first === undefined) return Infinity;
    const hasVersion = this.pending.some(({ priority }) => priority === "version");
    if (hasVersion) return Math.max(this.lastVersion + this.interval, this.belowLimit(CHART_BATCHES_MAX));
    const last = this.chartFlushes.at(-1) ?? -Infinity;
    return Math.max(Math.max(last, first.since) + this.interval, this.belowLimit(CHART_ONLY_MAX));
  }

  /** Return the time from which fewer than `max` chart batches lie within the window. */
  private belowLimit(max: number): number {
    return (this.chartFlushes.at(-max) ?? -Infinity) + CHART_BATCHES_MAX * this.interval;
  }

  private run(): void {
    this.timer = undefined;
    const now = performance.now();
    const firstChart = this.pending.findIndex(({ priority }) => priority !== "normal");
    // A timer may fire a little early.
    const all = firstChart === -1 || now >= this.chartDue() - 1;
    const ready = all ? this.pending : this.pending.slice(0, firstChart);
    this.pending = all ? [] : this.pending.slice(firstChart);
    this.lastFlush = now;
    if (all && firstChart !== -1) {
      this.chartFlushes = [...this.chartFlushes, now].slice(-CHART_BATCHES_MAX);
      if (ready.some(({ priority }) => priority === "version")) this.lastVersion = now;
    }
    if (ready.length > 0) this.flush(ready.map(({ item }) => item));
    if (this.pending.length > 0) this.schedule();
  }
}
