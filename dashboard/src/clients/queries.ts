/** Queries of the clients' reports. While a run goes on, only the newest columns are fetched again. */
import { queryOptions, type QueryClient } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import type { RawHeat } from "../api/types";
import { decodeCell, mergeBands, mergeHeat, decodeBands, decodeHeatMap, type Bands, type HeatMapData } from "./heatMapData";
import type { ClientLine } from "./clientSpread";

const POINTS = 1000;
/** Clients per request, and maximum number of requests. */
const PAGE = 500;
const PAGES = 4;
/** Evaluations arrive one round late. */
const OVERLAP = 2;
const ROUND_PAGE = 200;

export const clientKeys = {
  heat: (job: string, metric: string) => ["clients", job, "heat", metric] as const,
  bands: (job: string, metric: string) => ["clients", job, "bands", metric] as const,
  line: (job: string, node: string, metric: string) => ["clients", job, "line", node, metric] as const,
  round: (job: string, round: number) => ["clients", job, "round", round] as const,
};

async function fetchHeatMap(job: string, metric: string, since: number): Promise<HeatMapData> {
  const pages: RawHeat[] = [];
  let after = "";
  for (let page = 0; page < PAGES; page++) {
    const query = { metric, since, points: POINTS, limit: PAGE, after };
    const found = await unwrap(api.GET("/api/v1/jobs/{job}/reports/heatmap", { params: { path: { job }, query } }));
    pages.push(found);
    if (found.next === null) break;
    after = found.next;
  }
  return decodeHeatMap(pages);
}

async function fetchBands(job: string, metric: string, since: number): Promise<Bands> {
  const query = { metric, since, points: POINTS };
  return decodeBands(await unwrap(api.GET("/api/v1/jobs/{job}/reports/quantiles", { params: { path: { job }, query } })));
}

/** Return the known data with its newest columns fetched again, or everything if that does not fit. */
async function refreshed<T extends { rounds: number[] }>(
  known: T | undefined,
  ask: (since: number) => Promise<T>,
  merge: (known: T, fresh: T) => T | null,
): Promise<T> {
  const last = known?.rounds.at(-1);
  if (known === undefined || last === undefined || known.rounds.length >= POINTS) return ask(0);
  return merge(known, await ask(Math.max(0, last - OVERLAP))) ?? ask(0);
}

export const heatMapQuery = (client: QueryClient, job: string, metric: string) =>
  queryOptions({
    queryKey: clientKeys.heat(job, metric),
    queryFn: () =>
      refreshed(client.getQueryData<HeatMapData>(clientKeys.heat(job, metric)), (since) => fetchHeatMap(job, metric, since), mergeHeat),
    structuralSharing: false,
  });

export const bandsQuery = (client: QueryClient, job: string, metric: string) =>
  queryOptions({
    queryKey: clientKeys.bands(job, metric),
    queryFn: () =>
      refreshed(client.getQueryData<Bands>(clientKeys.bands(job, metric)), (since) => fetchBands(job, metric, since), mergeBands),
    structuralSharing: false,
  });

/** One client's values of a metric. */
export const lineQuery = (job: string, node: string, metric: string) =>
  queryOptions({
    queryKey: clientKeys.line(job, node, metric),
    queryFn: async (): Promise<ClientLine> => {
      const params = { path: { job, node }, query: { metric, points: POINTS } };
      const { rounds, step, values } = await unwrap(api.GET("/api/v1/jobs/{job}/nodes/{node}/reports/series", { params }));
      return { name: node, rounds, step, values: values.map(decodeCell) };
    },
    structuralSharing: false,
  });

export const roundQuery = (job: string, round: number, live: boolean) =>
  queryOptions({
    queryKey: clientKeys.round(job, round),
    queryFn: async () => {
      const params = { path: { job, number: round }, query: { limit: ROUND_PAGE } };
      return unwrap(api.GET("/api/v1/jobs/{job}/rounds/{number}", { params }));
    },
    refetchInterval: (query) => (live && query.state.data?.state !== "closed" ? 1000 : false),
  });

export const influenceQuery = (job: string) =>
  queryOptions({
    queryKey: ["clients", job, "influence"],
    queryFn: () => unwrap(api.GET("/api/v1/jobs/{job}/influence", { params: { path: { job } } })),
  });

export const fairnessQuery = (job: string, metric: string) =>
  queryOptions({
    queryKey: ["clients", job, "fairness", metric],
    queryFn: () => unwrap(api.GET("/api/v1/jobs/{job}/fairness", { params: { path: { job }, query: { metric } } })),
  });
