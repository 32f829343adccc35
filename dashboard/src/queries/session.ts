/** Query of the session. */
import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import { queryKeys } from "../api/queryKeys";
import type { Role } from "../api/types";

export const sessionQuery = queryOptions({
  queryKey: queryKeys.session,
  queryFn: async (): Promise<Role> => (await unwrap(api.GET("/api/v1/session"))).role,
});
