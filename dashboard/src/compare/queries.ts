/** Query of a comparison: one request for all runs. No event reports these figures. */
import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import { decodeComparison, type Comparison } from "./comparison";

/** Points of all runs together. */
const POINTS = 20_000;
const AGAIN_MS = 2000;
/** Larger comparisons are refetched less often. */
const AGAIN_MS_PER_RUN = 50;

export const compareQuery = (names: string[], target: number | undefined) =>
  queryOptions({
    queryKey: ["compare", names, target ?? null],
    queryFn: async (): Promise<Comparison> => {
      const points = Math.max(150, Math.min(1500, Math.floor(POINTS / names.length)));
      const query = { run: names, points, ...(target === undefined ? {} : { target }) };
      return decodeComparison(await unwrap(api.GET("/api/v1/compare", { params: { query } })), Date.now());
    },
    enabled: names.length > 0,
    refetchInterval: ({ state }) =>
      state.data?.rows.some(({ run }) => run.job.ended_at === null) ? AGAIN_MS + AGAIN_MS_PER_RUN * names.length : false,
    // The figures of the previous target are shown until the new ones are loaded.
    placeholderData: (before?: Comparison) => (before && isOf(before, names) ? before : undefined),
    structuralSharing: false,
  });

const isOf = (comparison: Comparison, names: string[]): boolean =>
  comparison.rows.length === names.length && comparison.rows.every(({ run }, index) => run.job.name === names[index]);
