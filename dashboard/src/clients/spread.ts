/** How far clients are apart at the versions of a chart, and one of them alone. */
import type { Version } from "../api/types";
import type { Point } from "../charts/series";
import type { Bands, Cell } from "./heat";

export interface Spread {
  /** Between these lie the middle 80 % of clients; as long as the versions. */
  low: Point[];
  high: Point[];
  /** The client that stands out, its values, and "" without one. */
  name: string;
  alone: Point[];
}

/** A client's values by column, as the coordinator tells them. */
export interface Alone {
  name: string;
  rounds: number[];
  step: number;
  values: Cell[];
}

interface Columns {
  rounds: number[];
  step: number;
}

/** The column in which a version lies; -1: before the first. */
export const columnOf = ({ rounds: [first = 0], step }: Columns, version: number): number =>
  Math.max(-1, Math.floor((version - first) / step));

/** A metric's place among clients. What nodes have not measured themselves has none. */
export const clientMetric = (names: string[]): string | undefined => names.find((name) => !name.startsWith("held_out/"));

export function spreadOf(versions: Version[], bands: Bands, alone: Alone | undefined): Spread {
  const at = (columns: Columns, values: Cell[]) =>
    versions.map(({ number }) => point(values[columnOf(columns, number)] ?? null));
  const edge = (values: Cell[]) => at(bands, values).map((value) => value ?? undefined);
  return {
    low: edge(bands.low),
    high: edge(bands.high),
    name: alone?.name ?? "",
    alone: alone === undefined ? versions.map(() => undefined) : at(alone, alone.values),
  };
}

const point = (value: Cell): Point => (value === null ? undefined : Number.isFinite(value) ? value : null);
