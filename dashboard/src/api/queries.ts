/**
 * The snapshots that pages start from. Each is fetched through `snapshot`, which applies what the stream brought
 * while the answer was on its way: an answer can be older than an event that overtook it, and must not undo it.
 */
import { queryOptions } from "@tanstack/react-query";
import type { Schema } from "../newjob/schema";
import { deltas } from "../live/log";
import { UNTOLD } from "../live/untold";
import { ALERTS_MAX, FAILURES_MAX, mergeAlerts, mergeFailures, mergeJob, mergeJobs, mergeMoves, mergeNodeFailures, mergeNodes, mergeNotes, mergePeers, mergeVersions, VERSIONS_MAX } from "../live/merge";
import { api, ApiError, unwrap } from "./client";
import { reviveJob, reviveNode, revivePeers, reviveVersion } from "./revive";
import type { FleetNode, FleetPage, Job, JobPage, LogLine, Owner, Role } from "./types";

/** A line of a chart is drawn from at most this many versions; the coordinator thins out longer runs. */
export const CHART_POINTS = VERSIONS_MAX;
export const SPARK_POINTS = 48;
const JOBS = 200;
const NOTES = 500;
const TRAFFIC_MS = 10_000;
const FLEET_MS = 5000;
const MATCHES_MS = 5000;

/** A job file as its form has it, or as somebody writes it. */
export type Draft = { toml: string } | { spec: Record<string, unknown> };

export const keys = {
  jobs: ["jobs"] as const,
  job: (job: string) => ["job", job] as const,
  versions: (job: string) => ["versions", job] as const,
  notes: (job: string) => ["notes", job] as const,
  failures: (job: string) => ["failures", job] as const,
  nodeFailures: (node: string) => ["node failures", node] as const,
  moves: (job: string) => ["moves", job] as const,
  nodes: (job: string) => ["nodes", job] as const,
  peers: (job: string) => ["peers", job] as const,
  traffic: (job: string) => ["traffic", job] as const,
  alerts: ["alerts"] as const,
  matches: ["matches"] as const,
  fleet: ["fleet"] as const,
  health: ["health"] as const,
  owner: ["owner"] as const,
  session: ["session"] as const,
  tokens: ["tokens"] as const,
  schema: ["schema"] as const,
  check: (draft: Draft) => ["check", draft] as const,
};

export const jobsQuery = queryOptions({
  queryKey: keys.jobs,
  queryFn: () =>
    deltas.snapshot(async () => {
      const jobs: Job[] = [];
      for (let after: string | null | undefined = ""; typeof after === "string"; ) {
        const page: JobPage = await unwrap(api.GET("/api/v1/jobs", { params: { query: { after, limit: JOBS } } }));
        jobs.push(...page.jobs.map((job) => reviveJob(job, Date.now())));
        after = page.next;
      }
      return jobs;
    }, mergeJobs),
});

/** Bytes of all jobs since this browser's midnight; after that the key is another. */
export const todayQuery = (midnight: string) =>
  queryOptions({
    queryKey: ["today", midnight],
    meta: UNTOLD,
    queryFn: () => unwrap(api.GET("/api/v1/traffic", { params: { query: { since: midnight } } })),
    refetchInterval: TRAFFIC_MS,
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
      }, mergeVersions(job, points)),
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
    meta: UNTOLD,
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
    meta: UNTOLD,
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

/** The newest failures of a job, newest first. */
export const failuresQuery = (job: string) =>
  queryOptions({
    queryKey: keys.failures(job),
    queryFn: () =>
      deltas.snapshot(async () => {
        const params = { query: { job, limit: FAILURES_MAX } };
        return (await unwrap(api.GET("/api/v1/failures", { params }))).failures;
      }, mergeFailures(job)),
  });

/** The newest failures of a node, newest first. */
export const nodeFailuresQuery = (node: string) =>
  queryOptions({
    queryKey: keys.nodeFailures(node),
    queryFn: () =>
      deltas.snapshot(async () => {
        const params = { query: { node, limit: FAILURES_MAX } };
        return (await unwrap(api.GET("/api/v1/failures", { params }))).failures;
      }, mergeNodeFailures(node)),
  });

/** The newest alerts, newest first. A stream of one job tells only of its own, so they are asked for again. */
export const alertsQuery = queryOptions({
  queryKey: keys.alerts,
  queryFn: () =>
    deltas.snapshot(async () => {
      return (await unwrap(api.GET("/api/v1/alerts", { params: { query: { limit: ALERTS_MAX } } }))).alerts;
    }, mergeAlerts),
  refetchInterval: TRAFFIC_MS,
});

/** Where a text stands in the log. */
export const matchesQuery = (wanted: { job?: string; node?: string; level?: LogLine["level"] }, q: string) =>
  queryOptions({
    queryKey: [...keys.matches, wanted, q],
    meta: UNTOLD,
    queryFn: async () => unwrap(api.GET("/api/v1/logs/matches", { params: { query: { ...wanted, q } } })),
    enabled: q !== "",
    refetchInterval: MATCHES_MS,
    placeholderData: (before) => before,
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
  meta: UNTOLD,
  queryFn: async () => {
    const nodes: FleetNode[] = [];
    for (let after: string | null | undefined = ""; typeof after === "string"; ) {
      const page: FleetPage = await unwrap(api.GET("/api/v1/nodes", { params: { query: { after } } }));
      nodes.push(...page.nodes);
      after = page.next;
    }
    return nodes;
  },
  refetchInterval: FLEET_MS,
});

/** What keeps the coordinator from its work; empty: nothing does. */
export const healthQuery = queryOptions({
  queryKey: keys.health,
  meta: UNTOLD,
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

/** Which of several coordinators owns all jobs; null: there is only this one. */
export const ownerQuery = queryOptions({
  queryKey: keys.owner,
  meta: UNTOLD,
  queryFn: (): Promise<Owner | null> => unwrap(api.GET("/api/v1/owner")),
  refetchInterval: ({ state }) => (state.data === null ? false : FLEET_MS),
});

export const sessionQuery = queryOptions({
  queryKey: keys.session,
  meta: UNTOLD,
  queryFn: async (): Promise<Role> => (await unwrap(api.GET("/api/v1/session"))).role,
});

/** Tokens that have not expired; for operators. */
export const tokensQuery = queryOptions({
  queryKey: keys.tokens,
  queryFn: async () => (await unwrap(api.GET("/api/v1/tokens"))).tokens,
});

/** What a switch would do now; never remembered. */
export const moveQuery = (job: string, to: "gossip" | "server") =>
  queryOptions({
    queryKey: ["move", job, to],
    queryFn: () => unwrap(api.GET("/api/v1/jobs/{job}/switch", { params: { path: { job }, query: { to } } })),
    staleTime: 0,
    gcTime: 0,
  });

export const schemaQuery = queryOptions({
  queryKey: keys.schema,
  meta: UNTOLD,
  queryFn: async () => (await unwrap(api.GET("/api/v1/schemas/job.json"))) as Schema,
});

/** What the coordinator says of a job file that nobody has submitted yet. Others may begin jobs meanwhile. */
export const checkQuery = (draft: Draft) =>
  queryOptions({
    queryKey: keys.check(draft),
    queryFn: async () => unwrap(api.POST("/api/v1/drafts/check", { body: draft })),
    staleTime: 0,
    gcTime: 0,
  });
