/** Query of the join tokens. */
import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import { queryKeys } from "../api/queryKeys";

/** Tokens that have not expired; for operators. */
export const tokensQuery = queryOptions({
  queryKey: queryKeys.tokens,
  queryFn: async () => (await unwrap(api.GET("/api/v1/tokens"))).tokens,
  staleTime: 0,
});
