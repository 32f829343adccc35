/** Queries about split jobs. No event reports them, so they are refetched while they run. */
import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import { decodeMetrics } from "../api/decode";
import type { RawSplitJob, RawSplitJobDetail, SplitJob, SplitJobDetail } from "../api/types";
import { hasEnded } from "../domain/job";

const INTERVAL_MS = 2000;
const LIST_INTERVAL_MS = 5000;

const decode = <T extends RawSplitJob>(raw: T): T & SplitJob => ({ ...raw, metrics: decodeMetrics(raw.metrics) });

const decodeDetail = (raw: RawSplitJobDetail): SplitJobDetail => ({
  ...decode(raw),
  versions: raw.versions.map((version) => ({ ...version, metrics: decodeMetrics(version.metrics) })),
});

export const splitJobsQuery = queryOptions({
  queryKey: ["split jobs"],
  queryFn: async (): Promise<SplitJob[]> => (await unwrap(api.GET("/api/v1/split"))).split_jobs.map(decode),
  refetchInterval: LIST_INTERVAL_MS,
});

export const splitJobQuery = (job: string) =>
  queryOptions({
    queryKey: ["split job", job],
    queryFn: async () => decodeDetail(await unwrap(api.GET("/api/v1/split/{job}", { params: { path: { job } } }))),
    refetchInterval: ({ state }) => (state.data !== undefined && hasEnded(state.data) ? false : INTERVAL_MS),
  });
