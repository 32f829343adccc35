/**
 * From JSON to the types of `types.ts`: the strings "NaN", "Infinity" and "-Infinity" become numbers again (JSON has
 * none of them), and durations that were true when they were sent become moments of this browser's clock.
 */
import type { Job, JobNode, Metrics, RawJob, RawNode, RawVersion, Version } from "./types";

/** A number as the API writes it, or undefined for what is none. */
export function reviveNumber(value: unknown): number | undefined {
  if (typeof value === "number") return value;
  if (value === "NaN") return NaN;
  if (value === "Infinity") return Infinity;
  if (value === "-Infinity") return -Infinity;
  return undefined;
}

export function reviveMetrics(raw: Record<string, unknown> | undefined): Metrics {
  const metrics: Record<string, number> = {};
  for (const [name, value] of Object.entries(raw ?? {})) {
    const number = reviveNumber(value);
    if (number !== undefined) metrics[name] = number;
  }
  return metrics;
}

export function reviveJob({ eta_s, ...raw }: RawJob, now: number): Job {
  const { mode = "server", mode_since = null } = raw;
  const eta_at = eta_s === null ? null : now + eta_s * 1000;
  return { ...raw, mode, mode_since, metrics: reviveMetrics(raw.metrics), eta_at };
}

export function reviveVersion(raw: RawVersion): Version {
  return { ...raw, metrics: reviveMetrics(raw.metrics), numbers: reviveMetrics(raw.numbers) };
}

export function reviveNode(raw: RawNode, now: number): JobNode {
  const silent = raw.last_seen_s;
  const losses = (raw.losses ?? []).map((loss) => reviveNumber(loss) ?? NaN);
  const seen_at = silent === null ? null : now - silent * 1000;
  return { ...raw, metrics: reviveMetrics(raw.metrics), losses, seen_at };
}
