/** What the pages of nodes ask. The stream tells of the nodes of jobs only, so these are asked again. */
import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import { UNTOLD } from "../live/untold";

const AGAIN_MS = 5000;
const REPORTS = 100;

export const nodeQuery = (node: string) =>
  queryOptions({
    queryKey: ["node", node],
    meta: UNTOLD,
    queryFn: async () => unwrap(api.GET("/api/v1/nodes/{node}", { params: { path: { node } } })),
    refetchInterval: AGAIN_MS,
  });

const SYSTEM_AGAIN_MS = 15_000;

export const systemQuery = (node: string, seconds: number) =>
  queryOptions({
    queryKey: ["system metrics", node, seconds],
    queryFn: async () =>
      unwrap(api.GET("/api/v1/nodes/{node}/system-metrics", { params: { path: { node }, query: { seconds } } })),
    refetchInterval: SYSTEM_AGAIN_MS,
  });

export const reportsQuery = (node: string) =>
  infiniteQueryOptions({
    queryKey: ["node reports", node],
    meta: UNTOLD,
    initialPageParam: undefined as number | undefined,
    queryFn: async ({ pageParam: before }) => {
      const query = { limit: REPORTS, ...(before === undefined ? {} : { before }) };
      return unwrap(api.GET("/api/v1/nodes/{node}/reports", { params: { path: { node }, query } }));
    },
    getNextPageParam: ({ next }) => next ?? undefined,
    refetchInterval: AGAIN_MS,
  });
