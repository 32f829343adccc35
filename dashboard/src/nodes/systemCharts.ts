/** Small charts of a node's system metrics. */
import type { SystemHistory } from "../api/types";
import { formatBytes, formatPercent } from "../format/number";

export type { SystemHistory };
type Series = (number | null)[];

export interface SystemChart {
  name: string;
  title: string;
  values: Series;
  /** The top of the chart; the bottom is 0. */
  top: number;
  write: (value: number) => string;
  /** Text beside the newest value: the total. */
  of: string;
}

const formatShare = (value: number) => formatPercent(value, 0);
const formatRate = (value: number) => `${formatBytes(value)}/s`;

interface Kind {
  name: string;
  title: string;
  write: (value: number) => string;
  /** The series of the total, or the total; otherwise the greatest value is the top. */
  whole?: string | number;
}

const KINDS: Kind[] = [
  { name: "cpu", title: "CPU use (%)", write: formatShare, whole: 1 },
  { name: "memory_bytes", title: "Memory used (bytes)", write: formatBytes, whole: "memory_total_bytes" },
  { name: "process_bytes", title: "Memory of the node's process (bytes)", write: formatBytes, whole: "memory_total_bytes" },
  { name: "gpu", title: "GPU use (%)", write: formatShare, whole: 1 },
  { name: "gpu_memory_bytes", title: "GPU memory used (bytes)", write: formatBytes, whole: "gpu_memory_total_bytes" },
  { name: "sent_bytes_per_s", title: "Sent (bytes/s)", write: formatRate },
  { name: "received_bytes_per_s", title: "Received (bytes/s)", write: formatRate },
  { name: "disk_free_bytes", title: "Free disk space (bytes)", write: formatBytes },
  { name: "battery", title: "Battery charge (%)", write: formatShare, whole: 1 },
];

const knownValues = (values: Series) => values.filter((value) => value !== null);

/** Return one chart per metric that was measured. */
export function systemCharts(history: SystemHistory): SystemChart[] {
  return KINDS.flatMap(({ name, title, write, whole }) => {
    const values = history.series[name] as Series | null | undefined;
    if (!values) return [];
    const total = typeof whole === "string" ? knownValues((history.series[whole] ?? []) as Series).at(-1) : undefined;
    const top = (typeof whole === "number" ? whole : total) ?? Math.max(...knownValues(values), 0);
    const charging = name === "battery" && (history.series["charging"] ?? []).at(-1) === true;
    const of = total === undefined ? (charging ? "charging" : "") : `of ${formatBytes(total)}`;
    return [{ name, title, values, top: top || 1, write, of }];
  });
}

/** Return the newest value. */
export const latestValue = (values: Series): number | null => knownValues(values).at(-1) ?? null;

/** Return the path of a line, with gaps where nothing was measured. */
export function linePath(at: number[], values: Series, top: number, width: number, height: number): string {
  const [first, last] = [at[0] ?? 0, at.at(-1) ?? 0];
  const span = last - first || 1;
  let pen = "M";
  return values
    .map((value, index) => {
      if (value === null) {
        pen = "M";
        return "";
      }
      const x = (((at[index] ?? first) - first) / span) * width;
      const y = height - (Math.min(value, top) / top) * height;
      const step = `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
      return step;
    })
    .join("");
}
