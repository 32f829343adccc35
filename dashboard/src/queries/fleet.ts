/** Queries about all nodes and the coordinator. No event changes their answers, so they are refetched. */
import { queryOptions } from "@tanstack/react-query";
import { api, ApiError, unwrap } from "../api/client";
import type { FleetNode, Leader, NodeListPage } from "../api/types";

const TRAFFIC_INTERVAL_MS = 10_000;
const FLEET_INTERVAL_MS = 5000;

/** All nodes, whether or not they participate in a job. */
export const fleetQuery = queryOptions({
  queryKey: ["fleet"],
  queryFn: async () => {
    const nodes: FleetNode[] = [];
    for (let after: string | null | undefined = ""; typeof after === "string"; ) {
      const page: NodeListPage = await unwrap(api.GET("/api/v1/nodes", { params: { query: { after } } }));
      nodes.push(...page.nodes);
      after = page.next;
    }
    return nodes;
  },
  refetchInterval: FLEET_INTERVAL_MS,
});

/** Bytes of all jobs since a time (ISO 8601). */
export const trafficSinceQuery = (since: string) =>
  queryOptions({
    queryKey: ["traffic since", since],
    queryFn: () => unwrap(api.GET("/api/v1/traffic", { params: { query: { since } } })),
    refetchInterval: TRAFFIC_INTERVAL_MS,
  });

/** The reason why the coordinator is not ready; empty if it is ready. */
export const healthQuery = queryOptions({
  queryKey: ["health"],
  queryFn: async (): Promise<string> => {
    try {
      await unwrap(api.GET("/readyz"));
      return "";
    } catch (error) {
      if (error instanceof ApiError && error.status === 503) return error.detail || error.message;
      throw error;
    }
  },
  refetchInterval: FLEET_INTERVAL_MS,
});

/** The leader of several coordinators; null if there is only one. */
export const leaderQuery = queryOptions({
  queryKey: ["leader"],
  queryFn: (): Promise<Leader | null> => unwrap(api.GET("/api/v1/leader")),
  refetchInterval: ({ state }) => (state.data === null ? false : FLEET_INTERVAL_MS),
});
