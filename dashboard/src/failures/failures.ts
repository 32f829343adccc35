/** Labels and selection of failures. */
import type { Failure } from "../api/types";
import type { IconName } from "../ui/Icon";

type Outcome = Failure["outcome"];
export type Phase = Failure["phase"];

export const PHASES: Record<Phase, string> = {
  unknown: "unknown phase",
  download: "download",
  init: "initialization",
  train: "training",
  evaluate: "evaluation",
  gossip: "gossip",
  upload: "upload",
  fold: "aggregation",
  contact: "lost contact",
};

export const OUTCOMES: Record<Outcome, { text: string; icon: IconName; tone: "good" | "warn" | "bad" | "plain" }> = {
  "asked-again": { text: "Asked again", icon: "running", tone: "good" },
  replaced: { text: "Replaced by other nodes", icon: "handover", tone: "good" },
  "left-out": { text: "Left out", icon: "apart", tone: "warn" },
  "set-aside": { text: "Set aside", icon: "gone", tone: "bad" },
  paused: { text: "Job paused", icon: "paused", tone: "warn" },
  awaited: { text: "Awaited", icon: "waiting", tone: "plain" },
};

type Trait = "node" | "job" | "phase";

/** Return the failures with these values; an empty value matches any. */
export const filterFailures = (failures: readonly Failure[], wanted: Partial<Record<Trait, string>>): Failure[] =>
  failures.filter((one) => (["node", "job", "phase"] as const).every((trait) => !wanted[trait] || one[trait] === wanted[trait]));

/** Count the values of a field, the most frequent first. */
export function countBy<K extends Trait>(failures: readonly Failure[], by: K): [Failure[K], number][] {
  const found = new Map<Failure[K], number>();
  for (const one of failures) found.set(one[by], (found.get(one[by]) ?? 0) + 1);
  return [...found].toSorted((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}
