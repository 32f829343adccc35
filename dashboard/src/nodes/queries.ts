/** Queries about one node. No event reports nodes outside of jobs, so they are refetched. */
import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import { FAILURES_MAX, mergeNodeFailures } from "../live/merge";
import { liveQuery } from "../queries/liveQuery";

const INTERVAL_MS = 5000;
const SYSTEM_INTERVAL_MS = 15_000;
const REPORTS_PER_PAGE = 100;

export const nodeQuery = (node: string) =>
  queryOptions({
    queryKey: ["node", node],
    queryFn: async () => unwrap(api.GET("/api/v1/nodes/{node}", { params: { path: { node } } })),
    refetchInterval: INTERVAL_MS,
  });

/** System metrics of the last `seconds`. */
export const systemQuery = (node: string, seconds: number) =>
  queryOptions({
    queryKey: ["system metrics", node, seconds],
    queryFn: async () =>
      unwrap(api.GET("/api/v1/nodes/{node}/system-metrics", { params: { path: { node }, query: { seconds } } })),
    refetchInterval: SYSTEM_INTERVAL_MS,
  });

/** Reports, newest first. */
export const reportsQuery = (node: string) =>
  infiniteQueryOptions({
    queryKey: ["node reports", node],
    initialPageParam: undefined as number | undefined,
    queryFn: async ({ pageParam: before }) => {
      const query = { limit: REPORTS_PER_PAGE, ...(before === undefined ? {} : { before }) };
      return unwrap(api.GET("/api/v1/nodes/{node}/reports", { params: { path: { node }, query } }));
    },
    getNextPageParam: ({ next }) => next ?? undefined,
    refetchInterval: INTERVAL_MS,
  });

/** The newest failures of a node, newest first. */
export const nodeFailuresQuery = (node: string) =>
  liveQuery(
    ["node failures", node],
    async () => {
      const params = { query: { node, limit: FAILURES_MAX } };
      return (await unwrap(api.GET("/api/v1/failures", { params }))).failures;
    },
    mergeNodeFailures(node),
  );
