/**
 * The snapshots that pages start from. Each is fetched through `snapshot`, which applies what the stream brought
 * while the answer was on its way: an answer can be older than an event that overtook it, and must not undo it.
 */
import { queryOptions } from "@tanstack/react-query";
import { deltas } from "../live/log";
import { mergeJob, mergeJobs, mergeMoves, mergeNodes, mergeNotes, mergePeers, mergeVersions } from "../live/merge";
import { api, ApiError, unwrap } from "./client";
import { reviveJob, reviveNode, revivePeers, reviveVersion } from "./revive";
import type { Job, Role } from "./types";

/** A line of a chart is drawn from at most this many versions; the coordinator thins out longer runs. */
const CHART_POINTS = 1500;
const SPARK_POINTS = 48;
const NOTES = 500;
const TRAFFIC_MS = 10_000;
const FLEET_MS = 5000;

export const keys = {
  jobs: ["jobs"] as const,
  job: (job: string) => ["job", job] as const,
  versions: (job: string) => ["versions", job] as const,
  notes: (job: string) => ["notes", job] as const,
  moves: (job: string) => ["moves", job] as const,
  nodes: (job: string) => ["nodes", job] as const,
  peers: (job: string) => ["peers", job] as const,
  traffic: (job: string) => ["traffic", job] as const,
  fleet: ["fleet"] as const,
  health: ["health"] as const,
  session: ["session"] as const,
};

export const jobsQuery = queryOptions({
  queryKey: keys.jobs,
  queryFn: () =>
    deltas.snapshot(async () => {
      const { jobs } = await unwrap(api.GET("/api/v1/jobs"));
      return jobs.map((job) => reviveJob(job, Date.now()));
    }, mergeJobs),
});

export const jobQuery = (job: string) =>
  queryOptions({
    queryKey: keys.job(job),
    queryFn: () =>
      deltas.snapshot(async () => {
        return reviveJob(await unwrap(api.GET("/api/v1/jobs/{job}", { params: { path: { job } } })), Date.now());
      }, mergeJob),
  });

function versionsQuery(job: string, points: number) {
  return queryOptions({
    queryKey: [...keys.versions(job), points],
    queryFn: () =>
      deltas.snapshot(async () => {
        const params = { path: { job }, query: { points } };
        const { versions } = await unwrap(api.GET("/api/v1/jobs/{job}/versions", { params }));
        return versions.map(reviveVersion);
      }, mergeVersions(job)),
    // A run has thousands of versions; comparing them all to keep old objects costs more than it saves.
    structuralSharing: false,
  });
}

export const chartVersionsQuery = (job: string) => versionsQuery(job, CHART_POINTS);
export const sparkVersionsQuery = (job: string) => versionsQuery(job, SPARK_POINTS);

/** Bytes by version and node. The stream does not tell them: while the job runs they are asked for again. */
export const trafficQuery = ({ name, ended_at }: Job) =>
  queryOptions({
    queryKey: [...keys.traffic(name), ended_at],
    queryFn: async () => {
      const params = { path: { job: name }, query: { by: ["version" as const, "node" as const] } };
      return (await unwrap(api.GET("/api/v1/jobs/{job}/traffic", { params }))).rows;
    },
    refetchInterval: ended_at === null ? TRAFFIC_MS : false,
  });

/** Bytes by node and kind, for as long as the job runs, like those above. */
export const kindsQuery = ({ name, ended_at }: Job) =>
  queryOptions({
    queryKey: [...keys.traffic(name), "kinds", ended_at],
    queryFn: async () => {
      const params = { path: { job: name }, query: { by: ["node" as const, "kind" as const] } };
      return (await unwrap(api.GET("/api/v1/jobs/{job}/traffic", { params }))).rows;
    },
    refetchInterval: ended_at === null ? TRAFFIC_MS : false,
  });

export const notesQuery = (job: string) =>
  queryOptions({
    queryKey: keys.notes(job),
    queryFn: () =>
      deltas.snapshot(async () => {
        const params = { path: { job }, query: { limit: NOTES } };
        return (await unwrap(api.GET("/api/v1/jobs/{job}/notes", { params }))).notes;
      }, mergeNotes(job)),
  });

/** The notes that tell when the job went to its nodes and came back; there are few. */
export const movesQuery = (job: string) =>
  queryOptions({
    queryKey: keys.moves(job),
    queryFn: () =>
      deltas.snapshot(async () => {
        const params = { path: { job }, query: { limit: NOTES, kind: ["mode" as const] } };
        return (await unwrap(api.GET("/api/v1/jobs/{job}/notes", { params }))).notes;
      }, mergeMoves(job)),
  });

export const nodesQuery = (job: string) =>
  queryOptions({
    queryKey: keys.nodes(job),
    queryFn: () =>
      deltas.snapshot(async () => {
        const { nodes } = await unwrap(api.GET("/api/v1/jobs/{job}/nodes", { params: { path: { job } } }));
        return nodes.map((node) => reviveNode(node, Date.now()));
      }, mergeNodes(job)),
  });

export const peersQuery = (job: string) =>
  queryOptions({
    queryKey: keys.peers(job),
    queryFn: () =>
      deltas.snapshot(async () => {
        const found = await unwrap(api.GET("/api/v1/jobs/{job}/peers", { params: { path: { job } } }));
        return revivePeers(found, Date.now());
      }, mergePeers(job)),
  });

/** All nodes, whatever they take part in. The stream tells of those of jobs only, so they are asked for again. */
export const fleetQuery = queryOptions({
  queryKey: keys.fleet,
  queryFn: async () => (await unwrap(api.GET("/api/v1/nodes"))).nodes,
  refetchInterval: FLEET_MS,
});

/** What keeps the coordinator from its work; empty: nothing does. */
export const healthQuery = queryOptions({
  queryKey: keys.health,
  queryFn: async (): Promise<string> => {
    try {
      await unwrap(api.GET("/readyz"));
      return "";
    } catch (error) {
      if (error instanceof ApiError && error.status === 503) return error.detail || error.message;
      throw error;
    }
  },
  refetchInterval: FLEET_MS,
});

export const sessionQuery = queryOptions({
  queryKey: keys.session,
  queryFn: async (): Promise<Role> => (await unwrap(api.GET("/api/v1/session"))).role,
});
