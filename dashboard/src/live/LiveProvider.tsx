import { useQueryClient, type Query, type QueryClient } from "@tanstack/react-query";
import { createContext, useContext, useEffect, useMemo, useState, type ReactNode } from "react";
import { applyDeltas } from "./apply";
import { Batcher, type Haste } from "./batch";
import { begin, type Connection } from "./connection";
import type { Delta } from "./delta";
import { deltas } from "./log";
import { mayStand } from "./mayStand";
import { newLines } from "./newLines";
import { LiveStream } from "./stream";

/** Four batches a second: no chart is redrawn more often by the stream. */
const BATCH_INTERVAL = 250;

/** Charts are drawn from versions, their metrics, and what peers tell. */
const hasteOf = ({ kind }: Delta): Haste =>
  kind === "version" ? "round" : kind === "metrics" || kind === "peers" ? "drawn" : "plain";

const StreamContext = createContext<LiveStream | null>(null);
const ConnectionContext = createContext<Connection>(begin(0));

export function LiveProvider({ children }: { children: ReactNode }) {
  const client = useQueryClient();
  const [connection, setConnection] = useState(() => begin(Date.now()));
  const { stream, batch } = useMemo(() => {
    const batch = new Batcher<Delta>((items) => applyDeltas(client, items), BATCH_INTERVAL, hasteOf);
    let first = true;
    const stream = new LiveStream({
      delta: (delta) => {
        deltas.push(delta);
        batch.push(delta);
      },
      hello: () => {
        void refetch(client, first);
        first = false;
      },
      connection: setConnection,
    });
    return { stream, batch };
  }, [client]);

  useEffect(() => {
    const nudge = () => stream.nudge();
    window.addEventListener("online", nudge);
    document.addEventListener("visibilitychange", nudge);
    return () => {
      window.removeEventListener("online", nudge);
      document.removeEventListener("visibilitychange", nudge);
      stream.close();
      batch.stop();
    };
  }, [stream, batch]);

  return (
    <StreamContext value={stream}>
      <ConnectionContext value={connection}>{children}</ConnectionContext>
    </StreamContext>
  );
}

/**
 * Everything anew. What is on its way was asked for before the stream began and may have missed what lies between; but
 * what asks by itself and hears of no event has missed nothing when the page has only just begun to listen.
 */
async function refetch(client: QueryClient, first: boolean): Promise<void> {
  const predicate = (query: Query) => !first || !mayStand(query);
  await client.cancelQueries({ predicate });
  newLines.tell();
  await client.invalidateQueries({ predicate });
}

export const useConnection = (): Connection => useContext(ConnectionContext);

/** Makes the tab's stream follow one job, or all with null, for as long as the page that asks is shown. */
export function useFollow(job: string | null): void {
  const stream = useContext(StreamContext);
  useEffect(() => stream?.open(job), [stream, job]);
}

/** Stops the stream: nothing may be read at the moment. */
export function useUnfollow(): void {
  const stream = useContext(StreamContext);
  useEffect(() => stream?.close(), [stream]);
}
