/** What is asked of each client's reports. While a run goes on only its newest columns are asked for again. */
import { queryOptions, type QueryClient } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import type { RawHeat } from "../api/types";
import { UNTOLD } from "../live/untold";
import { cell, mergeBands, mergeHeat, reviveBands, reviveHeat, type Bands, type Heat } from "./heat";
import type { Alone } from "./spread";

const POINTS = 1000;
/** Clients in one answer, and answers at most. */
const PAGE = 500;
const PAGES = 4;
/** Final evaluations come a round late. */
const OVERLAP = 2;
const ROUND_PAGE = 200;

export const clientKeys = {
  heat: (job: string, metric: string) => ["clients", job, "heat", metric] as const,
  bands: (job: string, metric: string) => ["clients", job, "bands", metric] as const,
  line: (job: string, node: string, metric: string) => ["clients", job, "line", node, metric] as const,
  round: (job: string, round: number) => ["clients", job, "round", round] as const,
};

async function heatSince(job: string, metric: string, since: number): Promise<Heat> {
  const pages: RawHeat[] = [];
  let after = "";
  for (let page = 0; page < PAGES; page++) {
    const query = { metric, since, points: POINTS, limit: PAGE, after };
    const found = await unwrap(api.GET("/api/v1/jobs/{job}/heat", { params: { path: { job }, query } }));
    pages.push(found);
    if (found.next === null) break;
    after = found.next;
  }
  return reviveHeat(pages);
}

async function bandsSince(job: string, metric: string, since: number): Promise<Bands> {
  const query = { metric, since, points: POINTS };
  return reviveBands(await unwrap(api.GET("/api/v1/jobs/{job}/bands", { params: { path: { job }, query } })));
}

/** What is known with its newest columns asked for again; all of it where that does not fit. */
async function renewed<T extends { rounds: number[] }>(
  known: T | undefined,
  ask: (since: number) => Promise<T>,
  merge: (known: T, fresh: T) => T | null,
): Promise<T> {
  const last = known?.rounds.at(-1);
  if (known === undefined || last === undefined || known.rounds.length >= POINTS) return ask(0);
  return merge(known, await ask(Math.max(0, last - OVERLAP))) ?? ask(0);
}

export const heatQuery = (client: QueryClient, job: string, metric: string) =>
  queryOptions({
    queryKey: clientKeys.heat(job, metric),
    meta: UNTOLD,
    queryFn: () =>
      renewed(client.getQueryData<Heat>(clientKeys.heat(job, metric)), (since) => heatSince(job, metric, since), mergeHeat),
    structuralSharing: false,
  });

export const bandsQuery = (client: QueryClient, job: string, metric: string) =>
  queryOptions({
    queryKey: clientKeys.bands(job, metric),
    meta: UNTOLD,
    queryFn: () =>
      renewed(client.getQueryData<Bands>(clientKeys.bands(job, metric)), (since) => bandsSince(job, metric, since), mergeBands),
    structuralSharing: false,
  });

/** One client's values of a metric. */
export const lineQuery = (job: string, node: string, metric: string) =>
  queryOptions({
    queryKey: clientKeys.line(job, node, metric),
    meta: UNTOLD,
    queryFn: async (): Promise<Alone> => {
      const params = { path: { job, node }, query: { metric, points: POINTS } };
      const { rounds, step, values } = await unwrap(api.GET("/api/v1/jobs/{job}/nodes/{node}/line", { params }));
      return { name: node, rounds, step, values: values.map(cell) };
    },
    structuralSharing: false,
  });

export const roundQuery = (job: string, round: number, live: boolean) =>
  queryOptions({
    queryKey: clientKeys.round(job, round),
    meta: UNTOLD,
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
