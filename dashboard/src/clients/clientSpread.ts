import type { Version } from "../api/types";
import type { ClientSpread } from "../charts/clientSpread";
import { toPoint } from "../charts/series";
import type { Bands, Cell } from "./heatMapData";

/** A client's values by column. */
export interface ClientLine {
  name: string;
  rounds: number[];
  step: number;
  values: Cell[];
}

interface Columns {
  rounds: number[];
  step: number;
}

/** Return the column of a version; -1 if it is before the first. */
export const columnOf = ({ rounds: [first = 0], step }: Columns, version: number): number =>
  Math.max(-1, Math.floor((version - first) / step));

export function clientSpread(versions: Version[], bands: Bands, line: ClientLine | undefined): ClientSpread {
  const valuesAt = (columns: Columns, values: Cell[]) =>
    versions.map(({ number }) => toPoint(values[columnOf(columns, number)] ?? undefined));
  const edge = (values: Cell[]) => valuesAt(bands, values).map((value) => value ?? undefined);
  return {
    low: edge(bands.low),
    high: edge(bands.high),
    name: line?.name ?? "",
    highlighted: line === undefined ? versions.map(() => undefined) : valuesAt(line, line.values),
  };
}
