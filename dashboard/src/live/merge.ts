/**
 * How a delta changes what is known. Every merge is pure and idempotent (a replayed event changes nothing) and
 * returns the very same object when nothing changed, so that what did not change is not drawn again.
 */
import type { Alert, Failure, Job, JobNode, JobPeers, Note, Peer, PeersPoint, Version } from "../api/types";
import { judged, thin } from "../charts/thin";
import type { Delta } from "./delta";

/** The newest notes that a tab keeps in memory. */
export const NOTES_MAX = 2000;
/** The newest points of the peers' history; the coordinator keeps as many. */
export const POINTS_MAX = 300;

/** The newest alerts that a tab keeps in memory. */
export const ALERTS_MAX = 300;
/** The newest failures that a tab keeps in memory. */
export const FAILURES_MAX = 500;

export function mergeJobs(jobs: Job[], delta: Delta): Job[] {
  const index = jobs.findIndex((job) => job.name === delta.job);
  const known = jobs[index];
  if (known === undefined) return delta.kind === "job" ? [...jobs, delta.value] : jobs;
  const next = mergeJob(known, delta);
  return next === known ? jobs : jobs.with(index, next);
}

export function mergeJob(job: Job, delta: Delta): Job {
  if (delta.job !== job.name) return job;
  switch (delta.kind) {
    case "job":
      return delta.value;
    case "traffic": {
      // Totals only grow; a slower event must not take them back.
      const up_bytes = Math.max(job.up_bytes, delta.up_bytes);
      const down_bytes = Math.max(job.down_bytes, delta.down_bytes);
      return up_bytes === job.up_bytes && down_bytes === job.down_bytes ? job : { ...job, up_bytes, down_bytes };
    }
    case "metrics":
      return mergeMetrics(job, delta);
    default:
      return job;
  }
}

/**
 * Evaluations come after their version has closed. The job's are those of the newest version that has any: figures of
 * two versions are not mixed. Which version is the best the coordinator says, once all who were asked have measured it.
 */
function mergeMetrics(job: Job, { number, metrics, provisional }: Delta & { kind: "metrics" }): Job {
  if (number < (job.measured ?? 0)) return job;
  const known = number === job.measured ? job.metrics : {};
  return { ...job, measured: number, metrics: { ...known, ...metrics }, provisional };
}

/** Versions are cut down to so many when there are more than that by a third, so that a long run costs no more than a short one. */
export const VERSIONS_MAX = 1500;
const SPARE = 4 / 3;
const TAIL = 100;

/** `most`: of a run, so many versions are kept; its newest ones all. */
export const mergeVersions =
  (job: string, most = VERSIONS_MAX) =>
  (versions: Version[], delta: Delta): Version[] => {
    if (delta.job !== job) return versions;
    if (delta.kind === "version") return cut(putVersion(versions, delta.version), most);
    if (delta.kind !== "metrics") return versions;
    const index = versions.findLastIndex((version) => version.number === delta.number);
    const known = versions[index];
    if (known === undefined) return versions;
    const { provisional } = delta;
    return versions.with(index, { ...known, provisional, metrics: { ...known.metrics, ...delta.metrics } });
  };

/** What no thinning may hide is kept by the coordinator too: where models began to drift apart faster. */
function cut(versions: Version[], most: number): Version[] {
  if (versions.length <= most * SPARE) return versions;
  return thin(versions, most, judged(versions), ({ numbers }) => numbers["jump"] !== undefined, Math.min(TAIL, most / 4));
}

function putVersion(versions: Version[], version: Version): Version[] {
  const after = versions.findLastIndex((known) => known.number <= version.number);
  const known = versions[after];
  if (known?.number === version.number) {
    return versions.with(after, { ...version, metrics: { ...known.metrics, ...version.metrics } });
  }
  const closed = versions.toSpliced(after + 1, 0, version);
  // The round that has closed waits for nobody any more.
  return known?.provisional ? closed.with(after, { ...known, provisional: settled(known) }) : closed;
}

/** Where versions are made of a few reports, an accuracy of half of the nodes or fewer stays one of some by chance. */
const settled = ({ metrics, provisional }: Version): Version["provisional"] =>
  provisional !== null && metrics["eval/asked"] !== undefined && 2 * provisional.reported <= provisional.asked ? provisional : null;

export const mergeNotes =
  (job: string) =>
  (notes: Note[], delta: Delta): Note[] => {
    if (delta.job !== job || delta.kind !== "note") return notes;
    const { note } = delta;
    const after = notes.findLastIndex((known) => known.id <= note.id);
    if (notes[after]?.id === note.id) return notes;
    return notes.toSpliced(after + 1, 0, note).slice(-NOTES_MAX);
  };

/** Of the notes only those on the job's mode. */
export const mergeMoves =
  (job: string) =>
  (moves: Note[], delta: Delta): Note[] =>
    delta.kind === "note" && delta.note.kind === "mode" ? mergeNotes(job)(moves, delta) : moves;

/** Newest first. */
export function mergeAlerts(alerts: Alert[], delta: Delta): Alert[] {
  if (delta.kind !== "alert") return alerts;
  const { alert } = delta;
  const index = alerts.findIndex((known) => known.id <= alert.id);
  if (index === -1) return alerts.length < ALERTS_MAX ? [...alerts, alert] : alerts;
  if (alerts[index]?.id === alert.id) return alerts.with(index, alert);
  return alerts.toSpliced(index, 0, alert).slice(0, ALERTS_MAX);
}

/** Newest first. What is said of an order later replaces what was said before, in its place. */
export const mergeFailures =
  (job: string) =>
  (failures: Failure[], delta: Delta): Failure[] => {
    return delta.job === job && delta.kind === "failure" ? putFailure(failures, delta.failure) : failures;
  };

/** The same, of a node. */
export const mergeNodeFailures =
  (node: string) =>
  (failures: Failure[], delta: Delta): Failure[] =>
    delta.kind === "failure" && delta.failure.node === node ? putFailure(failures, delta.failure) : failures;

function putFailure(failures: Failure[], failure: Failure): Failure[] {
  const index = failures.findIndex((known) => known.id <= failure.id);
  if (index === -1) return failures.length < FAILURES_MAX ? [...failures, failure] : failures;
  if (failures[index]?.id === failure.id) return failures.with(index, failure);
  return failures.toSpliced(index, 0, failure).slice(0, FAILURES_MAX);
}

export const mergeNodes =
  (job: string) =>
  (nodes: JobNode[], delta: Delta): JobNode[] => {
    if (delta.job !== job || delta.kind !== "nodes" || delta.nodes.length === 0) return nodes;
    const byName = new Map(nodes.map((node) => [node.name, node]));
    for (const node of delta.nodes) byName.set(node.name, node);
    return [...byName.values()];
  };

export const mergePeers =
  (job: string) =>
  (known: JobPeers, delta: Delta): JobPeers => {
    if (delta.job !== job || delta.kind !== "peers") return known;
    const byName = new Map(known.peers.map((peer) => [peer.name, peer]));
    for (const { partial, ...peer } of delta.peers) {
      const before = byName.get(peer.name);
      byName.set(peer.name, partial && before !== undefined ? joined(before, peer) : peer);
    }
    return {
      roster: Math.max(delta.roster, known.roster ?? 0),
      peers: [...byName.values()],
      now: delta.now,
      history: putPoint(known.history, delta.now),
    };
  };

/** What has changed over what is known: of others, a partial word names only some. */
const joined = (before: Peer, now: Peer): Peer => ({
  ...now,
  seen: new Map([...before.seen, ...now.seen]),
  contacts: new Map([...before.contacts, ...now.contacts]),
});

function putPoint(history: PeersPoint[], point: PeersPoint | null): PeersPoint[] {
  const last = history.at(-1);
  if (point === null || (last !== undefined && last.at >= point.at)) return history;
  return [...history, point].slice(-POINTS_MAX);
}
