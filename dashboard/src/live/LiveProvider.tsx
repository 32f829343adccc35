import { useQueryClient, type QueryClient } from "@tanstack/react-query";
import { createContext, useContext, useEffect, useMemo, useState, type ReactNode } from "react";
import { matchRoute } from "../router/router";
import { applyEvents } from "./applyEvents";
import { Batcher } from "./batcher";
import { initialConnection, type Connection } from "./connection";
import { eventLog } from "./eventLog";
import { priorityOf, type LiveEvent } from "./events";
import { logNotifier } from "./logNotifier";
import { mayBeStale } from "./queryMeta";
import { LiveStream } from "./stream";

/** Charts are redrawn at most four times a second (ms). */
const BATCH_INTERVAL = 250;

const StreamContext = createContext<LiveStream | null>(null);
const ConnectionContext = createContext<Connection>(initialConnection(0));

/** Opens the tab's stream and applies its events to the query cache. `onConnect` is called whenever a stream has started. */
export function LiveProvider({ onConnect, children }: { onConnect: () => void; children: ReactNode }) {
  const client = useQueryClient();
  const [connection, setConnection] = useState(() => initialConnection(Date.now()));
  const { stream, batcher } = useMemo(() => {
    const batcher = new Batcher<LiveEvent>((events) => applyEvents(client, events), BATCH_INTERVAL, priorityOf);
    let reopened = true;
    const stream = new LiveStream({
      onOpen: () => {
        reopened = true;
        eventLog.opening();
      },
      onError: () => eventLog.failed(),
      onEvent: (event) => {
        eventLog.push(event);
        batcher.push(event);
      },
      onHello: () => {
        eventLog.started();
        refetchStale(client, reopened);
        reopened = false;
        onConnect();
      },
      onConnection: setConnection,
    });
    return { stream, batcher };
  }, [client, onConnect]);

  // The stream is opened while the page is still being loaded, so that the page's requests need not wait for it.
  useEffect(() => stream.open(matchRoute(location.pathname, ["/jobs/:name"])?.names[0] ?? null), [stream]);

  useEffect(() => {
    const reconnect = () => stream.reconnect();
    window.addEventListener("online", reconnect);
    document.addEventListener("visibilitychange", reconnect);
    return () => {
      window.removeEventListener("online", reconnect);
      document.removeEventListener("visibilitychange", reconnect);
      stream.close();
      batcher.stop();
    };
  }, [stream, batcher]);

  return (
    <StreamContext value={stream}>
      <ConnectionContext value={connection}>{children}</ConnectionContext>
    </StreamContext>
  );
}

/** Refetch the answers that may lack events. Fetches under way are repeated by `EventLog.snapshot` if necessary. */
function refetchStale(client: QueryClient, reopened: boolean): void {
  logNotifier.notify();
  void client.invalidateQueries({ predicate: mayBeStale(reopened) }, { cancelRefetch: false });
}

export const useConnection = (): Connection => useContext(ConnectionContext);

/** Let the tab's stream follow one job, or all jobs if null, while the calling page is mounted. */
export function useFollow(job: string | null): void {
  const stream = useContext(StreamContext);
  useEffect(() => stream?.open(job), [stream, job]);
}

/** Close the stream, because the session may not read. */
export function useUnfollow(): void {
  const stream = useContext(StreamContext);
  useEffect(() => stream?.close(), [stream]);
}
