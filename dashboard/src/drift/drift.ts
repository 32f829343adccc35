/** What the panel "Drift" shows: from versions and nodes of a job of dynamic averaging to rates, gaps and savings. */
import type { JobNode, Version } from "../api/types";
import { TIME_STEPS } from "../charts/axis";

/** What has happened between two known versions (a long run is thinned out), told at the later one. */
export interface Step {
  /** Seconds since the job began. */
  at: number;
  full: number;
  partial: number;
  violations: number;
}

/** The counters only grow, so that nothing is lost where versions in between are not known. */
export function steps(versions: Version[]): Step[] {
  return versions.slice(1).map((version, index) => {
    const before = versions[index] as Version;
    const full = grown("total.full", before, version);
    return {
      at: version.elapsed_s,
      full,
      partial: Math.max(0, version.number - before.number - full),
      violations: grown("total.violations", before, version),
    };
  });
}

const grown = (name: string, before: Version, after: Version): number =>
  Math.max(0, (after.numbers[name] ?? 0) - (before.numbers[name] ?? 0));

export interface Rates {
  /** The middle of each span of time, in seconds. */
  x: number[];
  /** Per minute. */
  full: number[];
  partial: number[];
  violations: number[];
  /** Seconds that each span takes; the last may have only begun. */
  width: number;
}

const SPANS_MAX = 40;

/** Per minute, in equal spans of time from the job's beginning to `end` (seconds). */
export function rates(all: Step[], end: number): Rates {
  const width = TIME_STEPS.find((step) => end / step <= SPANS_MAX) ?? end / SPANS_MAX;
  const spans = Math.max(1, Math.ceil(end / width));
  const zeros = () => new Array<number>(spans).fill(0);
  const [full, partial, violations] = [zeros(), zeros(), zeros()];
  all.forEach((step) => {
    const span = Math.min(spans - 1, Math.floor(step.at / width));
    // The last span may have only begun; one that has hardly begun must not shoot up.
    const past = span === spans - 1 ? Math.max(width / 2, Math.min(width, end - span * width)) : width;
    full[span]! += (step.full * 60) / past;
    partial[span]! += (step.partial * 60) / past;
    violations[span]! += (step.violations * 60) / past;
  });
  return { x: full.map((_, span) => (span + 0.5) * width), full, partial, violations, width };
}

/** The latest rate per minute: over the last minute, or over the whole job if that is shorter. */
export function latestRate(all: Step[], end: number, what: (step: Step) => number): number {
  const window = Math.min(60, end);
  if (window <= 0) return 0;
  const recent = all.filter((step) => step.at > end - window);
  return (recent.reduce((sum, step) => sum + what(step), 0) * 60) / window;
}

/** A change of the data, as the coordinator found it. */
export interface Jump {
  /** By how much the rate of synchronisations had risen, or the loss. */
  rise: number;
  byLoss: boolean;
  /** The last version before. */
  since: number;
  /** Seconds since the job began: when it rose, and when that was found. */
  from: number;
  found: number;
}

export function jumps(versions: Version[]): Jump[] {
  return versions.flatMap(({ numbers, elapsed_s }) => {
    const { jump: rise, "jump.since": since } = numbers;
    if (rise === undefined || since === undefined) return [];
    const before = versions.findLast((version) => version.number <= since);
    const byLoss = numbers["jump.loss"] === 1;
    return [{ rise, byLoss, since, from: before?.elapsed_s ?? elapsed_s, found: elapsed_s }];
  });
}

/** The newest threshold, on the distance of a node or on the variance of all; undefined while it is being measured. */
export function threshold(versions: Version[], what: "delta" | "theta"): number | undefined {
  return versions.at(-1)?.numbers[what];
}

export interface Gap {
  node: string;
  /** ‖w − r‖² at its last report. */
  gap: number;
  /** The same as a share of the threshold. */
  share: number;
}

/** How far each node's model was from the reference at its last report, the furthest first. */
export function gaps(nodes: JobNode[], delta: number | undefined): Gap[] {
  if (delta === undefined) return [];
  return nodes
    .flatMap((node) => {
      const gap = node.metrics["train/gap"];
      return gap === undefined ? [] : [{ node: node.name, gap, share: gap / delta }];
    })
    .sort((a, b) => b.share - a.share);
}

export interface Saving {
  /** Checks of all nodes, as of their last reports. */
  checks: number;
  /** Bytes of the models alone, had they been averaged at every one: each up, and the mean down. */
  often: number;
  /** The share that was not sent; undefined while nothing could have been saved yet. */
  saved: number | undefined;
}

export function saving(nodes: JobNode[], modelBytes: number, spent: number): Saving {
  const checks = Math.round(nodes.reduce((sum, node) => sum + (node.metrics["train/checks"] ?? 0), 0));
  const often = checks * 2 * modelBytes;
  return { checks, often, saved: often > 0 ? 1 - spent / often : undefined };
}
