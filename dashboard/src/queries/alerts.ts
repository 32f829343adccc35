/** Query of the alerts. */
import { api, unwrap } from "../api/client";
import { queryKeys } from "../api/queryKeys";
import { ALERTS_MAX, mergeAlerts } from "../live/merge";
import { liveQuery } from "./liveQuery";

const fetchAlerts = async () => (await unwrap(api.GET("/api/v1/alerts", { params: { query: { limit: ALERTS_MAX } } }))).alerts;

/** The newest alerts, newest first. A stream of one job reports only that job's alerts, so they are refetched too. */
export const alertsQuery = { ...liveQuery(queryKeys.alerts, fetchAlerts, mergeAlerts), refetchInterval: 10_000 };
