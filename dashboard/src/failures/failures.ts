/** Failures as people read them: what the coordinator's words mean, and which to show. */
import type { Failure } from "../api/types";
import type { IconName } from "../ui/Icon";

type Outcome = Failure["outcome"];
export type Phase = Failure["phase"];

export const PHASES: Record<Phase, string> = {
  unknown: "somewhere",
  download: "fetching the model",
  init: "making the first model",
  train: "training",
  evaluate: "evaluating",
  gossip: "among peers",
  upload: "delivering",
  fold: "being counted",
  contact: "fell silent",
};

export const OUTCOMES: Record<Outcome, { text: string; icon: IconName; tone: "good" | "warn" | "bad" | "plain" }> = {
  "asked-again": { text: "Asked again", icon: "running", tone: "good" },
  replaced: { text: "Others asked in its place", icon: "handover", tone: "good" },
  "left-out": { text: "Left out", icon: "apart", tone: "warn" },
  suspended: { text: "Not asked for a while", icon: "gone", tone: "bad" },
  paused: { text: "The job is paused", icon: "paused", tone: "warn" },
  awaited: { text: "Still awaited", icon: "waiting", tone: "plain" },
};

type Trait = "node" | "job" | "phase";

/** Those that are like that; an empty word is any. */
export const chosen = (failures: readonly Failure[], wanted: Partial<Record<Trait, string>>): Failure[] =>
  failures.filter((one) => (["node", "job", "phase"] as const).every((trait) => !wanted[trait] || one[trait] === wanted[trait]));

/** What there is to choose from, with how often; the most frequent first. */
export function counts<K extends Trait>(failures: readonly Failure[], by: K): [Failure[K], number][] {
  const found = new Map<Failure[K], number>();
  for (const one of failures) found.set(one[by], (found.get(one[by]) ?? 0) + 1);
  return [...found].toSorted((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}
