import { notifyManager, type QueryClient, type QueryKey } from "@tanstack/react-query";
import { CHART_POINTS, keys, SPARK_POINTS } from "../api/queries";
import type { JobPeers } from "../api/types";
import type { Delta } from "./delta";
import { newLines } from "./newLines";
import { mergeAlerts, mergeFailures, mergeJob, mergeJobs, mergeMoves, mergeNodeFailures, mergeNodes, mergeNotes, mergePeers, mergeVersions } from "./merge";

/** Merges a batch of deltas into every cached answer that they concern, with one redraw for all. */
export function applyDeltas(client: QueryClient, batch: Delta[]): void {
  notifyManager.batch(() => {
    update(client, keys.jobs, batch, mergeJobs);
    update(client, keys.alerts, batch, mergeAlerts);
    if (batch.some(({ kind }) => kind === "logs")) newLines.tell();
    for (const delta of batch) {
      if (delta.kind !== "failure") continue;
      const { node } = delta.failure;
      update(client, keys.nodeFailures(node), [delta], mergeNodeFailures(node));
    }
    for (const [job, own] of byJob(batch)) {
      update(client, keys.job(job), own, mergeJob);
      for (const most of [CHART_POINTS, SPARK_POINTS]) {
        update(client, [...keys.versions(job), most], own, mergeVersions(job, most));
      }
      update(client, keys.notes(job), own, mergeNotes(job));
      update(client, keys.failures(job), own, mergeFailures(job));
      update(client, keys.moves(job), own, mergeMoves(job));
      update(client, keys.nodes(job), own, mergeNodes(job));
      const roster = client.getQueryData<JobPeers>(keys.peers(job))?.roster;
      update(client, keys.peers(job), own, mergePeers(job));
      if (isRenewed(own, roster)) void client.invalidateQueries({ queryKey: keys.peers(job) });
      if (own.some((delta) => delta.kind === "job")) askAgain(client, job);
    }
  });
}

/** A page may have asked for a job before there was one. */
function askAgain(client: QueryClient, job: string): void {
  if (client.getQueryState(keys.job(job))?.status === "error")
    void client.invalidateQueries({ predicate: (query) => query.queryKey[1] === job });
}

/** Events tell who has come or changed; who is no longer in the roster only a whole answer tells. */
const isRenewed = (batch: Delta[], roster: number | null | undefined): boolean =>
  roster !== undefined && batch.some((delta) => delta.kind === "peers" && delta.roster > (roster ?? 0));

function byJob(batch: Delta[]): Map<string, Delta[]> {
  const jobs = new Map<string, Delta[]>();
  for (const delta of batch) {
    const own = jobs.get(delta.job);
    if (own === undefined) jobs.set(delta.job, [delta]);
    else own.push(delta);
  }
  return jobs;
}

function update<T>(client: QueryClient, key: QueryKey, batch: Delta[], merge: (value: T, delta: Delta) => T): void {
  for (const [exact, value] of client.getQueriesData<T>({ queryKey: key })) {
    if (value === undefined) continue;
    const next = batch.reduce(merge, value);
    if (next !== value) client.setQueryData(exact, next);
  }
}
