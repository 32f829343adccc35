/**
 * The tab's one EventSource. The browser reconnects by itself after a broken connection (and sends Last-Event-ID);
 * it gives up after an answer that is no stream, and it cannot see a connection that died without a word. Both are
 * mended here.
 */
import { API } from "../api/client";
import type { EventData } from "../api/types";
import { aged, begin, greeted, lost, type Connection } from "./connection";
import { DELTA_EVENTS, readDelta, type Delta } from "./delta";

/** The coordinator pings every 15 s; after this long without a word the stream is opened anew (ms). */
export const SILENCE_MAX = 45_000;
/** How long a new stream may take until its first word (ms). */
export const HELLO_MAX = 4000;
const RETRY_MIN = 1000;
const RETRY_MAX = 10_000;

export interface Source {
  readonly readyState: number;
  addEventListener(type: string, listener: (event: Event) => void): void;
  close(): void;
}

export interface Listener {
  /** Another stream than before is being opened. */
  opening(): void;
  /** There is none at the moment. */
  failed(): void;
  delta(delta: Delta): void;
  /** The stream (re)started: whatever was fetched before may have missed something. */
  hello(): void;
  connection(connection: Connection): void;
}

const CLOSED = 2;

export class LiveStream {
  private source: Source | undefined;
  private url = "";
  private connection: Connection;
  private heardAt = 0;
  private retries = 0;
  private helloTimer: ReturnType<typeof setTimeout> | undefined;
  private retryTimer: ReturnType<typeof setTimeout> | undefined;
  private ticker: ReturnType<typeof setInterval> | undefined;

  constructor(
    private readonly listener: Listener,
    private readonly make: (url: string) => Source = (url) => new EventSource(url),
    private readonly now: () => number = Date.now,
  ) {
    this.connection = begin(now());
  }

  /** Follows one job, or all with null. */
  open(job: string | null): void {
    const url = job === null ? `${API}/stream` : `${API}/stream?job=${encodeURIComponent(job)}`;
    if (this.source !== undefined && url === this.url) return;
    this.url = url;
    this.listener.opening();
    this.ticker ??= setInterval(() => this.tick(), 1000);
    this.connect();
  }

  /** Tries at once, for instance because the machine woke up; does nothing while all is well. */
  nudge(): void {
    if (this.url !== "" && this.connection.phase !== "live") this.connect();
  }

  close(): void {
    this.drop();
    clearInterval(this.ticker);
    this.ticker = undefined;
    this.url = "";
  }

  private drop(): void {
    clearTimeout(this.helloTimer);
    clearTimeout(this.retryTimer);
    this.source?.close();
    this.source = undefined;
  }

  private connect(): void {
    this.drop();
    this.heardAt = this.now();
    const source = this.make(this.url);
    this.source = source;
    const mine = (handle: (event: Event) => void) => (event: Event) => {
      if (this.source === source) handle(event);
    };
    source.addEventListener(
      "hello",
      mine((event) => this.greet(event as MessageEvent<string>)),
    );
    source.addEventListener(
      "ping",
      mine(() => this.heard()),
    );
    source.addEventListener(
      "error",
      mine(() => this.failed(source)),
    );
    for (const type of DELTA_EVENTS) {
      source.addEventListener(
        type,
        mine((event) => {
          this.heard();
          this.listener.delta(readDelta(type, (event as MessageEvent<string>).data, this.now()));
        }),
      );
    }
    this.helloTimer = setTimeout(() => this.retry(), HELLO_MAX);
  }

  private heard(): void {
    this.heardAt = this.now();
  }

  private greet(event: MessageEvent<string>): void {
    clearTimeout(this.helloTimer);
    this.heard();
    this.retries = 0;
    const { server_time } = JSON.parse(event.data) as EventData<"hello">;
    this.become(greeted(this.connection, this.now(), server_time));
    this.listener.hello();
  }

  private failed(source: Source): void {
    clearTimeout(this.helloTimer);
    this.listener.failed();
    this.become(lost(this.connection, this.now()));
    // Otherwise the browser is already trying again.
    if (source.readyState === CLOSED) this.retry();
  }

  private retry(): void {
    this.drop();
    this.become(lost(this.connection, this.now()));
    this.retryTimer = setTimeout(() => this.connect(), Math.min(RETRY_MAX, RETRY_MIN * 2 ** this.retries));
    this.retries += 1;
  }

  private tick(): void {
    this.become(aged(this.connection, this.now()));
    if (this.connection.phase === "live" && this.now() - this.heardAt > SILENCE_MAX) this.connect();
  }

  private become(connection: Connection): void {
    if (connection === this.connection) return;
    this.connection = connection;
    this.listener.connection(connection);
  }
}
