/**
 * The tab's EventSource. The browser reconnects after a broken connection and sends Last-Event-ID, but it gives up after an
 * answer that is not a stream, and it does not notice a connection that died silently. `LiveStream` handles both.
 */
import { API } from "../api/client";
import type { EventData } from "../api/types";
import { checkTimeout, connected, disconnected, initialConnection, type Connection } from "./connection";
import { decodeEvent, EVENT_TYPES, type LiveEvent } from "./events";

/** The coordinator pings every 15 s; after this time without an event the stream is opened again (ms). */
export const SILENCE_MAX = 45_000;
/** Time in which a new stream must send its first event (ms). */
export const HELLO_MAX = 4000;
const RETRY_MIN = 1000;
const RETRY_MAX = 10_000;

/** The part of EventSource that `LiveStream` uses. */
export interface Source {
  readonly readyState: number;
  addEventListener(type: string, listener: (event: Event) => void): void;
  close(): void;
}

export interface Listener {
  /** Another stream is being opened. */
  onOpen(): void;
  /** The stream has broken. */
  onError(): void;
  onEvent(event: LiveEvent): void;
  /** The stream has started or restarted: answers fetched before may lack events. */
  onHello(): void;
  onConnection(connection: Connection): void;
}

const CLOSED = 2;

export class LiveStream {
  private source: Source | undefined;
  private url = "";
  private connection: Connection;
  private lastEventAt = 0;
  private retries = 0;
  private helloTimer: ReturnType<typeof setTimeout> | undefined;
  private retryTimer: ReturnType<typeof setTimeout> | undefined;
  private ticker: ReturnType<typeof setInterval> | undefined;

  constructor(
    private readonly listener: Listener,
    private readonly createSource: (url: string) => Source = (url) => new EventSource(url),
    private readonly now: () => number = Date.now,
  ) {
    this.connection = initialConnection(now());
  }

  /** Follow one job, or all jobs if null. */
  open(job: string | null): void {
    const url = job === null ? `${API}/stream` : `${API}/stream?job=${encodeURIComponent(job)}`;
    if (this.source !== undefined && url === this.url) return;
    this.url = url;
    this.listener.onOpen();
    this.ticker ??= setInterval(() => this.tick(), 1000);
    this.connect();
  }

  /** Reconnect at once, for instance after the machine was suspended; does nothing while live. */
  reconnect(): void {
    if (this.url !== "" && this.connection.phase !== "live") this.connect();
  }

  close(): void {
    this.closeSource();
    clearInterval(this.ticker);
    this.ticker = undefined;
    this.url = "";
  }

  private closeSource(): void {
    clearTimeout(this.helloTimer);
    clearTimeout(this.retryTimer);
    this.source?.close();
    this.source = undefined;
  }

  private connect(): void {
    this.closeSource();
    this.lastEventAt = this.now();
    const source = this.createSource(this.url);
    this.source = source;
    const on = (type: string, handle: (data: string) => void) =>
      source.addEventListener(type, (event) => {
        if (this.source !== source) return;
        if (type !== "error") this.lastEventAt = this.now();
        handle((event as MessageEvent<string>).data);
      });
    on("hello", (data) => this.handleHello(data));
    on("ping", () => undefined);
    on("error", () => this.handleError(source));
    for (const type of EVENT_TYPES) {
      on(type, (data) => this.listener.onEvent(decodeEvent(type, data, this.now())));
    }
    this.helloTimer = setTimeout(() => this.retry(), HELLO_MAX);
  }

  private handleHello(data: string): void {
    clearTimeout(this.helloTimer);
    this.retries = 0;
    const { server_time } = JSON.parse(data) as EventData<"hello">;
    this.setConnection(connected(this.connection, this.now(), server_time));
    this.listener.onHello();
  }

  private handleError(source: Source): void {
    clearTimeout(this.helloTimer);
    this.listener.onError();
    this.setConnection(disconnected(this.connection, this.now()));
    // In any other state the browser is reconnecting already.
    if (source.readyState === CLOSED) this.retry();
  }

  private retry(): void {
    this.closeSource();
    this.setConnection(disconnected(this.connection, this.now()));
    this.retryTimer = setTimeout(() => this.connect(), Math.min(RETRY_MAX, RETRY_MIN * 2 ** this.retries));
    this.retries += 1;
  }

  private tick(): void {
    this.setConnection(checkTimeout(this.connection, this.now()));
    if (this.connection.phase === "live" && this.now() - this.lastEventAt > SILENCE_MAX) this.connect();
  }

  private setConnection(connection: Connection): void {
    if (connection === this.connection) return;
    this.connection = connection;
    this.listener.onConnection(connection);
  }
}
