/** The `meta` of a query: how events change its answer. */
import type { Query } from "@tanstack/react-query";
import type { Merge } from "./merge";

declare module "@tanstack/react-query" {
  interface Register {
    queryMeta: {
      /** Merges an event into the answer. Without it no event changes the answer, and the query refetches by itself. */
      // eslint-disable-next-line @typescript-eslint/no-explicit-any
      merge?: Merge<any>;
    };
  }
}

/**
 * Return a predicate: whether an answer may lack events when a stream has started. Fetches under way are excluded, because
 * `EventLog.snapshot` repeats them. `reopened`: a page has opened another stream, as opposed to a reconnection after an
 * outage; then an answer that no event changes is still current.
 */
export const mayBeStale =
  (reopened: boolean) =>
  ({ meta, state }: Pick<Query, "meta" | "state">): boolean =>
    state.fetchStatus !== "fetching" && !(reopened && meta?.merge === undefined && state.status === "success");
