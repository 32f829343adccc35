import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Connection } from "./connection";
import { HELLO_MAX, LiveStream, SILENCE_MAX, type Source } from "./stream";

class FakeSource implements Source {
  readyState = 0;
  private listeners = new Map<string, ((event: Event) => void)[]>();

  constructor(readonly url: string) {}

  addEventListener(type: string, listener: (event: Event) => void): void {
    this.listeners.set(type, [...(this.listeners.get(type) ?? []), listener]);
  }

  close(): void {
    this.readyState = 2;
  }

  emit(type: string, data: unknown = {}): void {
    for (const listener of this.listeners.get(type) ?? []) listener({ data: JSON.stringify(data) } as unknown as Event);
  }
}

function start() {
  const sources: FakeSource[] = [];
  const phases: Connection[] = [];
  const onEvent = vi.fn();
  const hello = vi.fn();
  const opening = vi.fn();
  const stream = new LiveStream({ onOpen: opening, onError: () => undefined, onEvent, onHello: hello, onConnection: (connection) => phases.push(connection) }, (url) => {
    const source = new FakeSource(url);
    sources.push(source);
    return source;
  });
  const last = () => sources.at(-1) as FakeSource;
  return { stream, sources, last, opening, onEvent, hello, phase: () => phases.at(-1)?.phase };
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test("one source at a time; another job closes the one before", () => {
  const { stream, sources, last, opening } = start();
  stream.open(null);
  stream.open(null);
  expect(sources.map((source) => source.url)).toEqual(["/api/v1/stream"]);
  stream.open("a b");
  expect(last().url).toBe("/api/v1/stream?job=a%20b");
  expect(sources[0]?.readyState).toBe(2);
  expect(opening).toHaveBeenCalledTimes(2);
  stream.close();
  expect(last().readyState).toBe(2);
});

test("a greeting makes it live and calls for snapshots, at each start anew", () => {
  const { stream, last, hello, phase } = start();
  stream.open(null);
  last().emit("hello");
  expect(phase()).toBe("live");
  last().emit("error"); // the browser reconnects by itself: readyState is not CLOSED
  expect(phase()).toBe("reconnecting");
  last().emit("hello");
  expect(phase()).toBe("live");
  expect(hello).toHaveBeenCalledTimes(2);
});

test("events are read and handed on; those of a source that was replaced are not", () => {
  const { stream, sources, last, onEvent } = start();
  stream.open(null);
  last().emit("traffic", { job: "digits", up_bytes: 1, down_bytes: 2 });
  expect(onEvent).toHaveBeenCalledWith({ type: "traffic", job: "digits", data: { up_bytes: 1, down_bytes: 2 } });
  stream.open("digits");
  sources[0]?.emit("traffic", { job: "digits", up_bytes: 9, down_bytes: 9 });
  expect(onEvent).toHaveBeenCalledTimes(1);
});

test("where the browser gave up, it is tried again, more and more slowly, and called unreachable", () => {
  const { stream, sources, last, phase } = start();
  stream.open(null);
  last().emit("hello");
  const give = () => {
    last().readyState = 2;
    last().emit("error");
  };
  give();
  vi.advanceTimersByTime(999);
  expect(sources).toHaveLength(1);
  vi.advanceTimersByTime(1);
  expect(sources).toHaveLength(2);
  give();
  vi.advanceTimersByTime(1999);
  expect(sources).toHaveLength(2);
  vi.advanceTimersByTime(1);
  expect(sources).toHaveLength(3);
  give();
  vi.advanceTimersByTime(3000);
  expect(phase()).toBe("unreachable");
});

test("a source that never says a word is replaced", () => {
  const { stream, sources, phase } = start();
  stream.open(null);
  vi.advanceTimersByTime(HELLO_MAX + 1000);
  expect(sources).toHaveLength(2);
  expect(phase()).not.toBe("live");
});

test("a connection that died without a word is found by its silence; any event is a sign of life", () => {
  const { stream, sources, last, phase } = start();
  stream.open(null);
  last().emit("hello");
  vi.advanceTimersByTime(SILENCE_MAX - 1000);
  last().emit("ping");
  vi.advanceTimersByTime(SILENCE_MAX - 1000);
  expect(sources).toHaveLength(1);
  vi.advanceTimersByTime(3000);
  expect(sources).toHaveLength(2);
  expect(phase()).toBe("live");
  vi.advanceTimersByTime(HELLO_MAX);
  expect(phase()).toBe("reconnecting");
});

test("a nudge tries at once while not live, and leaves a live one alone", () => {
  const { stream, sources, last } = start();
  stream.open(null);
  last().emit("hello");
  stream.reconnect();
  expect(sources).toHaveLength(1);
  last().readyState = 2;
  last().emit("error");
  stream.reconnect();
  expect(sources).toHaveLength(2);
});
