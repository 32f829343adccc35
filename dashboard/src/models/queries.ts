/** Query of a job's models. No event reports deleted files, so it is refetched. */
import { infiniteQueryOptions, keepPreviousData } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import { decodeMetrics } from "../api/decode";
import type { Job, ModelRow } from "../api/types";

const PAGE = 50;
const AGAIN_MS = 3000;

/** Models, newest first; `kept`: only those whose file exists. */
export const modelsQuery = (job: Job, kept: boolean) =>
  infiniteQueryOptions({
    queryKey: ["models", job.name, kept, job.labels, job.ended_at],
    initialPageParam: undefined as number | undefined,
    queryFn: async ({ pageParam: before }) => {
      const query = { limit: PAGE, kept, ...(before === undefined ? {} : { before }) };
      const page = await unwrap(api.GET("/api/v1/jobs/{job}/models", { params: { path: { job: job.name }, query } }));
      const models = page.models.map((row): ModelRow => ({ ...row, metrics: decodeMetrics(row.metrics) }));
      return { models, next: page.next };
    },
    getNextPageParam: ({ next }) => next ?? undefined,
    placeholderData: keepPreviousData,
    refetchInterval: job.ended_at === null ? AGAIN_MS : false,
  });

/** Return the address of a model's file. */
export const modelHref = (job: string, version: number): string =>
  `/api/v1/jobs/${encodeURIComponent(job)}/models/${version}`;
