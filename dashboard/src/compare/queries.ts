/** What the page of comparisons asks: one request for all runs. The stream tells of versions, not of these figures. */
import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import { UNTOLD } from "../live/untold";
import { comparisonOf, type Comparison } from "./runs";

/** Points that are drawn in all; the fewer runs, the more of each. */
const POINTS = 20_000;
const AGAIN_MS = 2000;
/** The more there is to read, the more seldom. */
const AGAIN_MS_PER_RUN = 50;

export const compareQuery = (names: string[], target: number | undefined) =>
  queryOptions({
    queryKey: ["compare", names, target ?? null],
    queryFn: async (): Promise<Comparison> => {
      const points = Math.max(150, Math.min(1500, Math.floor(POINTS / names.length)));
      const query = { run: names, points, ...(target === undefined ? {} : { target }) };
      return comparisonOf(await unwrap(api.GET("/api/v1/compare", { params: { query } })), Date.now());
    },
    enabled: names.length > 0,
    refetchInterval: ({ state }) =>
      state.data?.rows.some(({ run }) => run.job.ended_at === null) ? AGAIN_MS + AGAIN_MS_PER_RUN * names.length : false,
    // Another target is another question about the same runs: what is shown stays until its answer comes.
    placeholderData: (before?: Comparison) => (before && isOf(before, names) ? before : undefined),
    structuralSharing: false,
    meta: UNTOLD,
  });

const isOf = (comparison: Comparison, names: string[]): boolean =>
  comparison.rows.length === names.length && comparison.rows.every(({ run }, index) => run.job.name === names[index]);
