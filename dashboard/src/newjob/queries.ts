/** Queries of the form for a new job. */
import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import type { Schema } from "./schema";

/** A job file as values or as text. */
export type Draft = { toml: string } | { spec: Record<string, unknown> };

export const schemaQuery = queryOptions({
  queryKey: ["job schema"],
  queryFn: async () => (await unwrap(api.GET("/api/v1/schemas/job.json"))) as Schema,
});

/** The coordinator's validation of a draft. It is repeated, because a name can be taken meanwhile. */
export const draftCheckQuery = (draft: Draft) =>
  queryOptions({
    queryKey: ["draft check", draft],
    queryFn: async () => unwrap(api.POST("/api/v1/jobs:validate", { body: draft })),
    staleTime: 0,
    gcTime: 0,
  });
