/** Queries about jobs. */
import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "../api/client";
import { decodeJob, decodeNode, decodePeers, decodeVersion } from "../api/decode";
import { queryKeys } from "../api/queryKeys";
import type { Job, JobListPage } from "../api/types";
import {
  mergeFailures,
  mergeJob,
  mergeJobs,
  mergeModeEvents,
  mergeNodes,
  mergeJobEvents,
  mergePeers,
  mergeVersions,
  FAILURES_MAX,
  VERSIONS_MAX,
} from "../live/merge";
import { liveQuery } from "./liveQuery";

/** Points of a sparkline; the coordinator downsamples longer runs. */
const SPARKLINE_POINTS = 48;
const JOBS_PER_PAGE = 200;
const JOB_EVENTS_LIMIT = 500;
const TRAFFIC_INTERVAL_MS = 10_000;

const pathOf = (job: string) => ({ path: { job } });

async function fetchJobs(): Promise<Job[]> {
  const jobs: Job[] = [];
  for (let after: string | null | undefined = ""; typeof after === "string"; ) {
    const query = { after, limit: JOBS_PER_PAGE };
    const page: JobListPage = await unwrap(api.GET("/api/v1/jobs", { params: { query } }));
    jobs.push(...page.jobs.map((job) => decodeJob(job, Date.now())));
    after = page.next;
  }
  return jobs;
}

export const jobsQuery = liveQuery(queryKeys.jobs, fetchJobs, mergeJobs);

export const jobQuery = (job: string) =>
  liveQuery(
    queryKeys.job(job),
    async () => decodeJob(await unwrap(api.GET("/api/v1/jobs/{job}", { params: pathOf(job) })), Date.now()),
    mergeJob,
  );

function versionsQuery(job: string, points: number) {
  const fetch = async () => {
    const params = { ...pathOf(job), query: { points } };
    const { versions } = await unwrap(api.GET("/api/v1/jobs/{job}/versions", { params }));
    return versions.map(decodeVersion);
  };
  // Structural sharing would compare thousands of versions, which costs more than it saves.
  return { ...liveQuery(["versions", job, points], fetch, mergeVersions(job, points)), structuralSharing: false };
}

export const chartVersionsQuery = (job: string) => versionsQuery(job, VERSIONS_MAX);
export const sparklineVersionsQuery = (job: string) => versionsQuery(job, SPARKLINE_POINTS);

/** Bytes by version and node. No event reports them, so they are refetched while the job runs. */
export const trafficQuery = ({ name, ended_at }: Job) =>
  queryOptions({
    queryKey: ["traffic", name, ended_at],
    queryFn: async () => {
      const params = { ...pathOf(name), query: { by: ["version" as const, "node" as const] } };
      return (await unwrap(api.GET("/api/v1/jobs/{job}/traffic", { params }))).rows;
    },
    refetchInterval: ended_at === null ? TRAFFIC_INTERVAL_MS : false,
  });

/** Bytes by node and kind of message, refetched while the job runs. */
export const trafficByKindQuery = ({ name, ended_at }: Job) =>
  queryOptions({
    queryKey: ["traffic", name, "kinds", ended_at],
    queryFn: async () => {
      const params = { ...pathOf(name), query: { by: ["node" as const, "kind" as const] } };
      return (await unwrap(api.GET("/api/v1/jobs/{job}/traffic", { params }))).rows;
    },
    refetchInterval: ended_at === null ? TRAFFIC_INTERVAL_MS : false,
  });

/** Events of a job, oldest first. */
export const eventsQuery = (job: string) =>
  liveQuery(
    ["events", job],
    async () => {
      const params = { ...pathOf(job), query: { limit: JOB_EVENTS_LIMIT } };
      return (await unwrap(api.GET("/api/v1/jobs/{job}/events", { params }))).events;
    },
    mergeJobEvents(job),
  );

/** Changes of a job's mode, oldest first. */
export const modeEventsQuery = (job: string) =>
  liveQuery(
    ["mode events", job],
    async () => {
      const params = { ...pathOf(job), query: { limit: JOB_EVENTS_LIMIT, kind: ["mode" as const] } };
      return (await unwrap(api.GET("/api/v1/jobs/{job}/events", { params }))).events;
    },
    mergeModeEvents(job),
  );

/** The newest failures of a job, newest first. */
export const failuresQuery = (job: string) =>
  liveQuery(
    ["failures", job],
    async () => {
      const params = { query: { job, limit: FAILURES_MAX } };
      return (await unwrap(api.GET("/api/v1/failures", { params }))).failures;
    },
    mergeFailures(job),
  );

export const jobNodesQuery = (job: string) =>
  liveQuery(
    ["nodes", job],
    async () => {
      const { nodes } = await unwrap(api.GET("/api/v1/jobs/{job}/nodes", { params: pathOf(job) }));
      return nodes.map((node) => decodeNode(node, Date.now()));
    },
    mergeNodes(job),
  );

export const peersQuery = (job: string) =>
  liveQuery(
    queryKeys.peers(job),
    async () => decodePeers(await unwrap(api.GET("/api/v1/jobs/{job}/peers", { params: pathOf(job) })), Date.now()),
    mergePeers(job),
  );

/** The effects of a mode switch if it were requested now; never cached. */
export const switchPreviewQuery = (job: string, to: "gossip" | "server") =>
  queryOptions({
    queryKey: ["switch preview", job, to],
    queryFn: () => unwrap(api.GET("/api/v1/jobs/{job}/switch", { params: { ...pathOf(job), query: { to } } })),
    staleTime: 0,
    gcTime: 0,
  });
