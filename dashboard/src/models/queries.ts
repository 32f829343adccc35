/** What the tab of a job's models asks. The stream tells of versions, not of files that went: so it is asked again. */
import { infiniteQueryOptions, keepPreviousData } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import { UNTOLD } from "../live/untold";
import { reviveMetrics } from "../api/revive";
import type { Job, ModelRow } from "../api/types";

const PAGE = 50;
const AGAIN_MS = 3000;

/** Models, newest version first; `kept`: only those whose file is still there. */
export const modelsQuery = (job: Job, kept: boolean) =>
  infiniteQueryOptions({
    queryKey: ["models", job.name, kept, job.labels, job.ended_at],
    meta: UNTOLD,
    initialPageParam: undefined as number | undefined,
    queryFn: async ({ pageParam: before }) => {
      const query = { limit: PAGE, kept, ...(before === undefined ? {} : { before }) };
      const page = await unwrap(api.GET("/api/v1/jobs/{job}/models", { params: { path: { job: job.name }, query } }));
      const models = page.models.map((row): ModelRow => ({ ...row, metrics: reviveMetrics(row.metrics) }));
      return { models, next: page.next };
    },
    getNextPageParam: ({ next }) => next ?? undefined,
    placeholderData: keepPreviousData,
    refetchInterval: job.ended_at === null ? AGAIN_MS : false,
  });

/** Where the browser gets a model from. */
export const modelHref = (job: string, version: number): string =>
  `/api/v1/jobs/${encodeURIComponent(job)}/models/${version}`;
