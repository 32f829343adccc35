import { notifyManager, type QueryClient } from "@tanstack/react-query";
import { queryKeys } from "../api/queryKeys";
import type { JobPeers } from "../api/types";
import type { LiveEvent } from "./events";
import { logNotifier } from "./logNotifier";

/** Merge a batch of events into every cached answer whose query has a merge function, with one render for all. */
export function applyEvents(client: QueryClient, batch: LiveEvent[]): void {
  notifyManager.batch(() => {
    for (const event of batch) refetchIncomplete(client, event);
    for (const query of client.getQueryCache().getAll()) {
      const { merge } = query.meta ?? {};
      const value: unknown = query.state.data;
      if (merge === undefined || value === undefined) continue;
      const next: unknown = batch.reduce(merge, value);
      if (next !== value) client.setQueryData(query.queryKey, next);
    }
  });
}

/** Refetch what an event announces but does not contain. */
function refetchIncomplete(client: QueryClient, event: LiveEvent): void {
  switch (event.type) {
    case "logs":
      return logNotifier.notify();
    case "job":
      // A page may have asked for the job before it existed.
      if (client.getQueryState(queryKeys.job(event.job))?.status === "error")
        void client.invalidateQueries({ predicate: ({ queryKey }) => queryKey[1] === event.job });
      return;
    case "peers": {
      // Events contain the peers that joined or changed; only the whole answer shows which have left the roster.
      const key = queryKeys.peers(event.job);
      const roster = client.getQueryData<JobPeers>(key)?.roster;
      if (roster !== undefined && event.data.roster > (roster ?? 0)) void client.invalidateQueries({ queryKey: key });
    }
  }
}
