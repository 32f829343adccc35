/** The bytes of a step of a split job, and the turns of its nodes. */
import type { SplitJob, SplitJobDetail, SplitVersion } from "../api/types";
import { formatBytes, formatCount, plural } from "../format/number";

export interface StepBytes {
  round: number;
  up: number;
  down: number;
}

/** Return the bytes of a round for each of its steps: batches, and a share of the parts of the model and HTTP heads. */
export const stepBytesOf = ({ number, batches, up_bytes, down_bytes }: SplitVersion): StepBytes => ({
  round: number,
  up: up_bytes / batches,
  down: down_bytes / batches,
});

/** Return the bytes of each round's steps. */
export const stepBytes = ({ versions }: Pick<SplitJobDetail, "versions">): StepBytes[] =>
  versions.filter(({ batches }) => batches > 0).map(stepBytesOf);

const NAMES_MAX = 3;

/** Return the nodes that have a turn, as a text; empty if there are none. */
export function turnsText({ nodes }: Pick<SplitJob, "nodes">): string {
  const names = nodes.filter(({ turn_batches }) => turn_batches !== null).map(({ name }) => name);
  return names.length > NAMES_MAX ? plural(names.length, "node") : names.join(", ");
}

/** Return the reason of the state: the end, or the nodes for which the job waits. */
export function whyState({ state, ended, nodes, spec }: Pick<SplitJob, "state" | "ended" | "nodes" | "spec">): string {
  if (ended !== "") return ended;
  const joined = nodes.filter(({ excluded }) => excluded === "").length;
  const { nodes: wanted, parties = [] } = spec as { nodes?: number; parties?: string[] };
  return state === "waiting" ? `${formatCount(joined)} of ${formatCount(parties.length || Number(wanted))} nodes have joined` : "";
}

/** Return the settings that determine the bytes of a step, as a text. */
export function cutText(spec: SplitJob["spec"]): string {
  const { cut, labels, filters = [] } = spec as { cut?: unknown; labels?: string; filters?: { name: string }[] };
  const parts = [
    cut !== undefined && `cut at ${[cut].flat().join(" and ")}`,
    labels !== undefined && `labels at the ${labels}`,
    filters.length > 0 && `filters ${filters.map(({ name }) => name).join(", ")}`,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** Return a pair of byte counts: "1.02 kB up, 512 B down". */
export const upAndDown = (up: number, down: number): string => `${formatBytes(up)} up, ${formatBytes(down)} down`;
