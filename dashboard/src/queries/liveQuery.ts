import { queryOptions, type QueryKey } from "@tanstack/react-query";
import { eventLog } from "../live/eventLog";
import type { Merge } from "../live/merge";

/**
 * Query of an answer that the stream keeps current. Events that arrive during the fetch are applied to the result, because
 * the answer can be older than they are.
 */
export const liveQuery = <T>(queryKey: QueryKey, fetch: () => Promise<T>, merge: Merge<T>) =>
  queryOptions({ queryKey, queryFn: () => eventLog.snapshot(fetch, merge), meta: { merge } });
