/** Rates, distances and savings of a job with dynamic averaging, computed from its versions and nodes. */
import type { JobNode, Version } from "../api/types";
import { TIME_STEPS } from "../charts/axis";

/** Counts between two known versions, at the later one. A long run is downsampled. */
export interface SyncStep {
  /** Seconds since the start of the job. */
  at: number;
  full: number;
  partial: number;
  violations: number;
}

/** The versions' counters only grow, so that nothing is lost if versions in between are unknown. */
export function syncSteps(versions: Version[]): SyncStep[] {
  return versions.slice(1).map((version, index) => {
    const before = versions[index] as Version;
    const full = increase("total.full_syncs", before, version);
    return {
      at: version.elapsed_s,
      full,
      partial: Math.max(0, version.number - before.number - full),
      violations: increase("total.violations", before, version),
    };
  });
}

const increase = (name: string, before: Version, after: Version): number =>
  Math.max(0, (after.numbers[name] ?? 0) - (before.numbers[name] ?? 0));

export interface Rates {
  /** The middle of each interval (s). */
  x: number[];
  /** Per minute. */
  full: number[];
  partial: number[];
  violations: number[];
  /** The width of an interval (s). */
  width: number;
}

const INTERVALS_MAX = 40;

/** Return rates per minute in equal intervals from the start of the job to `end` (s). */
export function rates(steps: SyncStep[], end: number): Rates {
  const width = TIME_STEPS.find((step) => end / step <= INTERVALS_MAX) ?? end / INTERVALS_MAX;
  const intervals = Math.max(1, Math.ceil(end / width));
  const zeros = () => new Array<number>(intervals).fill(0);
  const [full, partial, violations] = [zeros(), zeros(), zeros()];
  steps.forEach((step) => {
    const index = Math.min(intervals - 1, Math.floor(step.at / width));
    // The last interval is not over; one that has just begun must not show an extreme rate.
    const past = index === intervals - 1 ? Math.max(width / 2, Math.min(width, end - index * width)) : width;
    full[index]! += (step.full * 60) / past;
    partial[index]! += (step.partial * 60) / past;
    violations[index]! += (step.violations * 60) / past;
  });
  return { x: full.map((_, index) => (index + 0.5) * width), full, partial, violations, width };
}

/** Return the rate per minute over the last minute, or over the whole job if that is shorter. */
export function latestRate(steps: SyncStep[], end: number, count: (step: SyncStep) => number): number {
  const window = Math.min(60, end);
  if (window <= 0) return 0;
  const recent = steps.filter((step) => step.at > end - window);
  return (recent.reduce((sum, step) => sum + count(step), 0) * 60) / window;
}

/** A concept drift that the coordinator detected. */
export interface ConceptDrift {
  /** The factor by which the rate of synchronizations or the loss has risen. */
  rise: number;
  byLoss: boolean;
  /** The last version before. */
  since: number;
  /** Seconds since the start of the job: of the rise, and of its detection. */
  from: number;
  found: number;
}

export function conceptDrifts(versions: Version[]): ConceptDrift[] {
  return versions.flatMap(({ numbers, elapsed_s }) => {
    const { "concept_drift.factor": rise, "concept_drift.since": since } = numbers;
    if (rise === undefined || since === undefined) return [];
    const before = versions.findLast((version) => version.number <= since);
    const byLoss = numbers["concept_drift.by_loss"] === 1;
    return [{ rise, byLoss, since, from: before?.elapsed_s ?? elapsed_s, found: elapsed_s }];
  });
}

/** Return the newest threshold: of a node's distance ("delta") or of the variance ("theta"); undefined while it is measured. */
export function threshold(versions: Version[], name: "delta" | "theta"): number | undefined {
  return versions.at(-1)?.numbers[name];
}

export interface ReferenceDistance {
  node: string;
  /** ‖w − r‖² at its last report. */
  distance: number;
  /** The same, divided by the threshold. */
  share: number;
}

/** Return each node's distance from the reference model at its last report, the greatest first. */
export function referenceDistances(nodes: JobNode[], delta: number | undefined): ReferenceDistance[] {
  if (delta === undefined) return [];
  return nodes
    .flatMap((node) => {
      const distance = node.metrics["train/divergence"];
      return distance === undefined ? [] : [{ node: node.name, distance, share: distance / delta }];
    })
    .sort((a, b) => b.share - a.share);
}

export interface BytesSaved {
  /** Checks of all nodes, by their last reports. */
  checks: number;
  /** Bytes of the models, had they been averaged at every check: one up and one down. */
  often: number;
  /** The share that was not sent; undefined while no check is known. */
  saved: number | undefined;
}

export function bytesSaved(nodes: JobNode[], modelBytes: number, spent: number): BytesSaved {
  const checks = Math.round(nodes.reduce((sum, node) => sum + (node.metrics["train/checks"] ?? 0), 0));
  const often = checks * 2 * modelBytes;
  return { checks, often, saved: often > 0 ? 1 - spent / often : undefined };
}
