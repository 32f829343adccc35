/** A node's machine over time, as small charts: what each shows, and where its line runs. */
import type { SystemHistory } from "../api/types";
import { bytes, percent } from "../format/number";

export type { SystemHistory };
type Series = (number | null)[];

export interface SystemChart {
  name: string;
  title: string;
  values: Series;
  /** The top of the chart; the bottom is 0. */
  top: number;
  write: (value: number) => string;
  /** What stands beside the newest value: the whole of which it is a part. */
  of: string;
}

const share = (value: number) => percent(value, 0);
const rate = (value: number) => `${bytes(value)}/s`;

interface Kind {
  name: string;
  title: string;
  write: (value: number) => string;
  /** The series that has the whole, or the whole itself; without it the greatest value is the top. */
  whole?: string | number;
}

const KINDS: Kind[] = [
  { name: "cpu", title: "CPU", write: share, whole: 1 },
  { name: "memory_bytes", title: "Memory", write: bytes, whole: "memory_total_bytes" },
  { name: "process_bytes", title: "Own processes", write: bytes, whole: "memory_total_bytes" },
  { name: "gpu", title: "GPU", write: share, whole: 1 },
  { name: "gpu_memory_bytes", title: "GPU memory", write: bytes, whole: "gpu_memory_total_bytes" },
  { name: "sent_bytes_per_s", title: "Sent", write: rate },
  { name: "received_bytes_per_s", title: "Received", write: rate },
  { name: "disk_free_bytes", title: "Disk free", write: bytes },
  { name: "battery", title: "Battery", write: share, whole: 1 },
];

const known = (values: Series) => values.filter((value) => value !== null);

/** One chart for each thing that was measured. */
export function systemCharts(history: SystemHistory): SystemChart[] {
  return KINDS.flatMap(({ name, title, write, whole }) => {
    const values = history.series[name] as Series | null | undefined;
    if (!values) return [];
    const total = typeof whole === "string" ? known((history.series[whole] ?? []) as Series).at(-1) : undefined;
    const top = (typeof whole === "number" ? whole : total) ?? Math.max(...known(values), 0);
    const charging = name === "battery" && (history.series["charging"] ?? []).at(-1) === true;
    const of = total === undefined ? (charging ? "charging" : "") : `of ${bytes(total)}`;
    return [{ name, title, values, top: top || 1, write, of }];
  });
}

/** The newest value that was measured. */
export const newest = (values: Series): number | null => known(values).at(-1) ?? null;

/** A line through the values by their time, broken where nothing was measured; in a box of that width and height. */
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
