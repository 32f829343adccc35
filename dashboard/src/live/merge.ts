/**
 * Merge functions: how an event changes a cached answer. Each is pure and idempotent, because events can be replayed, and
 * returns the same object if nothing changed, so that nothing is rendered again.
 */
import type { Alert, Failure, Job, JobNode, JobPeers, JobEvent, Peer, PeersPoint, Version } from "../api/types";
import { downsample, rankingValues } from "../domain/downsample";
import type { LiveEvent } from "./events";

export type Merge<T> = (value: T, event: LiveEvent) => T;

/** Bounds on what a browser tab keeps in memory: the newest job events, points of the peers' history, alerts, failures. */
export const JOB_EVENTS_MAX = 2000;
export const POINTS_MAX = 300;
export const ALERTS_MAX = 300;
export const FAILURES_MAX = 500;

export function mergeJobs(jobs: Job[], event: LiveEvent): Job[] {
  const index = jobs.findIndex((job) => job.name === event.job);
  const known = jobs[index];
  if (known === undefined) return event.type === "job" ? [...jobs, event.data] : jobs;
  const next = mergeJob(known, event);
  return next === known ? jobs : jobs.with(index, next);
}

export function mergeJob(job: Job, event: LiveEvent): Job {
  if (event.job !== job.name) return job;
  switch (event.type) {
    case "job":
      return event.data;
    case "traffic": {
      // Totals only grow; a delayed event must not decrease them.
      const up_bytes = Math.max(job.up_bytes, event.data.up_bytes);
      const down_bytes = Math.max(job.down_bytes, event.data.down_bytes);
      return up_bytes === job.up_bytes && down_bytes === job.down_bytes ? job : { ...job, up_bytes, down_bytes };
    }
    case "metrics":
      return mergeMetrics(job, event);
    default:
      return job;
  }
}

/**
 * A job shows the metrics of the newest version that has any; metrics of two versions are not mixed. `best` comes from
 * the coordinator, once all nodes that were asked have evaluated the version.
 */
function mergeMetrics(job: Job, { data: { number, metrics, provisional } }: LiveEvent<"metrics">): Job {
  if (number < (job.metrics_version ?? 0)) return job;
  const known = number === job.metrics_version ? job.metrics : {};
  return { ...job, metrics_version: number, metrics: { ...known, ...metrics }, provisional };
}

/** Versions are downsampled to this number when there are a third more, so that a long run costs no more than a short one. */
export const VERSIONS_MAX = 1500;
const SLACK = 4 / 3;
const TAIL = 100;

/** `max`: number of versions to keep; the newest ones are always kept. */
export const mergeVersions =
  (job: string, max = VERSIONS_MAX): Merge<Version[]> =>
  (versions, event) => {
    if (event.job !== job) return versions;
    if (event.type === "version") return limit(insertVersion(versions, event.data), max);
    if (event.type !== "metrics") return versions;
    const { number, metrics, provisional } = event.data;
    const index = versions.findLastIndex((version) => version.number === number);
    const known = versions[index];
    if (known === undefined) return versions;
    return versions.with(index, { ...known, provisional, metrics: { ...known.metrics, ...metrics } });
  };

/** Like the coordinator, keep the versions at which drift was detected. */
function limit(versions: Version[], max: number): Version[] {
  if (versions.length <= max * SLACK) return versions;
  const isDrift = ({ numbers }: Version) => numbers["concept_drift.factor"] !== undefined;
  return downsample(versions, max, rankingValues(versions), isDrift, Math.min(TAIL, max / 4));
}

function insertVersion(versions: Version[], version: Version): Version[] {
  const before = versions.findLastIndex((known) => known.number <= version.number);
  const known = versions[before];
  if (known?.number === version.number) {
    return versions.with(before, { ...version, metrics: { ...known.metrics, ...version.metrics } });
  }
  const inserted = versions.toSpliced(before + 1, 0, version);
  // The previous round has closed, so no more reports are expected for it.
  return known?.provisional ? inserted.with(before, { ...known, provisional: provisionalAfterClose(known) }) : inserted;
}

/** If versions are made of few reports, an accuracy of at most half of the nodes remains provisional, as a random sample. */
const provisionalAfterClose = ({ metrics, provisional }: Version): Version["provisional"] =>
  provisional !== null && metrics["eval/asked"] !== undefined && 2 * provisional.reported <= provisional.asked ? provisional : null;

/** Oldest first. */
export const mergeJobEvents =
  (job: string): Merge<JobEvent[]> =>
  (known, event) => {
    if (event.job !== job || event.type !== "job_event") return known;
    const added = event.data;
    const before = known.findLastIndex((one) => one.id <= added.id);
    if (known[before]?.id === added.id) return known;
    return known.toSpliced(before + 1, 0, added).slice(-JOB_EVENTS_MAX);
  };

/** Only the events about the job's mode. */
export const mergeModeEvents =
  (job: string): Merge<JobEvent[]> =>
  (known, event) =>
    event.type === "job_event" && event.data.kind === "mode" ? mergeJobEvents(job)(known, event) : known;

export const mergeAlerts: Merge<Alert[]> = (alerts, event) =>
  event.type === "alert" ? upsertNewestFirst(alerts, event.data, ALERTS_MAX) : alerts;

export const mergeFailures =
  (job: string): Merge<Failure[]> =>
  (failures, event) =>
    event.job === job && event.type === "failure" ? upsertNewestFirst(failures, event.data, FAILURES_MAX) : failures;

export const mergeNodeFailures =
  (node: string): Merge<Failure[]> =>
  (failures, event) =>
    event.type === "failure" && event.data.node === node ? upsertNewestFirst(failures, event.data, FAILURES_MAX) : failures;

/** Insert an item into a list that is sorted by descending id, or replace the item that has its id. */
function upsertNewestFirst<T extends { id: number }>(items: T[], item: T, max: number): T[] {
  const index = items.findIndex((known) => known.id <= item.id);
  if (index === -1) return items.length < max ? [...items, item] : items;
  if (items[index]?.id === item.id) return items.with(index, item);
  return items.toSpliced(index, 0, item).slice(0, max);
}

export const mergeNodes =
  (job: string): Merge<JobNode[]> =>
  (nodes, event) => {
    if (event.job !== job || event.type !== "nodes" || event.data.length === 0) return nodes;
    const byName = new Map(nodes.map((node) => [node.name, node]));
    for (const node of event.data) byName.set(node.name, node);
    return [...byName.values()];
  };

export const mergePeers =
  (job: string): Merge<JobPeers> =>
  (known, event) => {
    if (event.job !== job || event.type !== "peers") return known;
    const { roster, peers, now } = event.data;
    const byName = new Map(known.peers.map((peer) => [peer.name, peer]));
    for (const { partial, ...peer } of peers) {
      const before = byName.get(peer.name);
      byName.set(peer.name, partial && before !== undefined ? mergePartial(before, peer) : peer);
    }
    return {
      roster: Math.max(roster, known.roster ?? 0),
      peers: [...byName.values()],
      now,
      history: appendPoint(known.history, now),
    };
  };

/** A partial update names only those other peers of which something changed. */
const mergePartial = (before: Peer, update: Peer): Peer => ({
  ...update,
  rounds_by_peer: new Map([...before.rounds_by_peer, ...update.rounds_by_peer]),
  links: new Map([...before.links, ...update.links]),
});

function appendPoint(history: PeersPoint[], point: PeersPoint | null): PeersPoint[] {
  const last = history.at(-1);
  if (point === null || (last !== undefined && last.at >= point.at)) return history;
  return [...history, point].slice(-POINTS_MAX);
}
