import type { Query } from "@tanstack/react-query";

/** The `meta` of a query that no event changes: it asks again by itself where that is needed. */
export const UNTOLD = { untold: true };

/** Whether such a query has, or is about to have, an answer that the first word of a stream makes no older. */
export const mayStand = ({ meta, state }: Pick<Query, "meta" | "state">): boolean =>
  meta?.["untold"] === true && state.status !== "error" && (state.fetchStatus === "fetching" || state.data !== undefined);
