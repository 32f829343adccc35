/** The bytes of a step of a split job, and the turns of its nodes. */
import type { SplitJob, SplitJobDetail } from "../api/types";
import { formatBytes, formatCount, plural } from "../format/number";

export interface StepBytes {
  round: number;
  up: number;
  down: number;
}

/** Return the bytes of each round for one of its steps: batches, and a share of the parts of the model and HTTP heads. */
export const stepBytes = ({ versions }: Pick<SplitJobDetail, "versions">): StepBytes[] =>
  versions
    .filter(({ batches }) => batches > 0)
    .map(({ number, batches, up_bytes, down_bytes }) => ({ round: number, up: up_bytes / batches, down: down_bytes / batches }));

/** Return the parties of a job on vertical data; empty for a job with a cut. */
export const partiesOf = (spec: SplitJob["spec"]): string[] => (spec["parties"] ?? []) as string[];

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
  const wanted = partiesOf(spec).length || Number(spec["nodes"]);
  return state === "waiting" ? `${formatCount(joined)} of ${formatCount(wanted)} nodes have joined` : "";
}

/** Return the settings that determine the bytes of a step, as a text. */
export function cutText(spec: SplitJob["spec"]): string {
  const { cut, labels, filters } = spec as { cut: unknown; labels: string; filters: { name: string }[] };
  const parties = partiesOf(spec).length;
  const parts = [
    parties > 0 ? `${formatCount(parties)} parties` : `cut at ${[cut].flat().join(" and ")}`,
    `labels at ${parties > 0 ? labels : `the ${labels}`}`,
    filters.length > 0 && `filters ${filters.map(({ name }) => name).join(", ")}`,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** Return a pair of byte counts: "1.02 kB up, 512 B down". */
export const upAndDown = (up: number, down: number): string => `${formatBytes(up)} up, ${formatBytes(down)} down`;
