import type { Query } from "@tanstack/react-query";

/** The `meta` of a query that no event changes: it asks again by itself where that is needed. */
export const UNTOLD = { untold: true };

/**
 * Whether an answer may have missed something when a stream says its first word. What is on its way is looked after where
 * it is fetched (`DeltaLog.snapshot`). `anew`: a page has begun to listen, as opposed to the end of an outage; then what no
 * event changes has missed nothing.
 */
export const mayHaveMissed =
  (anew: boolean) =>
  ({ meta, state }: Pick<Query, "meta" | "state">): boolean =>
    state.fetchStatus !== "fetching" && !(anew && meta?.["untold"] === true && state.status === "success");
