/** Query of the matches of a log search. */
import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import type { LogLine } from "../api/types";

const INTERVAL_MS = 5000;

export interface LogFilter {
  job?: string;
  /** "": the coordinator's own lines. */
  node?: string;
  level?: LogLine["level"];
}

/** Lines that contain the text `q`. */
export const logMatchesQuery = (filter: LogFilter, q: string) =>
  queryOptions({
    queryKey: ["log matches", filter, q],
    queryFn: async () => unwrap(api.GET("/api/v1/logs/matches", { params: { query: { ...filter, q } } })),
    enabled: q !== "",
    refetchInterval: INTERVAL_MS,
    placeholderData: (previous) => previous,
  });
