import { useQueryClient, type QueryClient } from "@tanstack/react-query";
import { createContext, useContext, useEffect, useMemo, useState, type ReactNode } from "react";
import { route } from "../router";
import { loadAll } from "../ui/lazily";
import { applyDeltas } from "./apply";
import { Batcher, type Haste } from "./batch";
import { begin, type Connection } from "./connection";
import type { Delta } from "./delta";
import { deltas } from "./log";
import { newLines } from "./newLines";
import { LiveStream } from "./stream";
import { mayHaveMissed } from "./untold";

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
    let anew = true;
    const stream = new LiveStream({
      opening: () => {
        anew = true;
        deltas.opening();
      },
      failed: () => deltas.failed(),
      delta: (delta) => {
        deltas.push(delta);
        batch.push(delta);
      },
      hello: () => {
        deltas.began();
        refetch(client, anew);
        anew = false;
        void loadAll();
      },
      connection: setConnection,
    });
    return { stream, batch };
  }, [client]);

  // The stream is opened while the page is still on its way, so that what the page asks for need not wait for it.
  useEffect(() => stream.open(route(location.pathname, ["/jobs/:name"])?.names[0] ?? null), [stream]);

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
 * Everything anew that has an answer or none any more. What is on its way waits for the stream, or notices by itself that
 * one has begun (`DeltaLog.snapshot`).
 */
function refetch(client: QueryClient, anew: boolean): void {
  newLines.tell();
  void client.invalidateQueries({ predicate: mayHaveMissed(anew) }, { cancelRefetch: false });
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
