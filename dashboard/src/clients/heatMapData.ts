/** A metric by client and round, as the heat map and the lines draw it. */
import { decodeNumber } from "../api/decode";
import type { RawBands, RawHeat } from "../api/types";
import { naturalOrder } from "../format/text";

/** null: no report; NaN: diverged. */
export type Cell = number | null;

export interface HeatMapData {
  /** The first round of each column, `step` apart. */
  rounds: number[];
  step: number;
  /** By client, one cell per column. */
  rows: Map<string, Cell[]>;
  /** Names of all metrics. */
  metrics: string[];
  /** Number of clients; there may be fewer rows. */
  nodes: number;
}

export interface Bands {
  rounds: number[];
  step: number;
  mean: Cell[];
  low: Cell[];
  high: Cell[];
}

export const decodeCell = (value: unknown): Cell => (value === null ? null : (decodeNumber(value) ?? NaN));

/** Join the pages of an answer. */
export function decodeHeatMap(pages: RawHeat[]): HeatMapData {
  const rows = new Map<string, Cell[]>();
  for (const { node, values } of pages.flatMap((page) => page.rows)) rows.set(node, values.map(decodeCell));
  const [first] = pages;
  return {
    rounds: first?.rounds ?? [],
    step: first?.step ?? 1,
    rows,
    metrics: first?.metrics ?? [],
    nodes: first?.nodes ?? 0,
  };
}

/** If all values of a round diverged, its mean is NaN. */
export function decodeBands({ rounds, step, mean, low, high, diverged }: RawBands): Bands {
  const bad = (values: Cell[]) => values.map((value, index) => (value === null && diverged[index] ? NaN : value));
  return { rounds, step, mean: bad(mean), low, high };
}

/** Replace the newest columns by `fresh`; null if they do not fit, so that everything has to be fetched. */
export function mergeHeat(known: HeatMapData, fresh: HeatMapData): HeatMapData | null {
  const splice = columnSplicer(known, fresh);
  if (splice === null) return null;
  const names = new Set([...known.rows.keys(), ...fresh.rows.keys()]);
  const rows = new Map([...names].map((node) => [node, splice(known.rows.get(node), fresh.rows.get(node))]));
  return { ...fresh, rounds: joinedRounds(known, fresh), rows };
}

export function mergeBands(known: Bands, fresh: Bands): Bands | null {
  const splice = columnSplicer(known, fresh);
  if (splice === null) return null;
  const join = (name: "mean" | "low" | "high") => splice(known[name], fresh[name]);
  return { step: 1, rounds: joinedRounds(known, fresh), mean: join("mean"), low: join("low"), high: join("high") };
}

interface Columns {
  rounds: number[];
  step: number;
}

function columnSplicer(known: Columns, fresh: Columns): ((before?: Cell[], after?: Cell[]) => Cell[]) | null {
  const [first] = known.rounds;
  const [next] = fresh.rounds;
  if (known.step !== 1 || fresh.step !== 1 || first === undefined) return null;
  if (next === undefined) return (before = []) => before;
  const kept = next - first;
  if (kept < 0) return null;
  return (before = [], after = []) => {
    const head = before.slice(0, kept);
    while (head.length < kept) head.push(null); // rounds without data
    const tail = after.length === fresh.rounds.length ? after : fresh.rounds.map(() => null);
    return head.concat(tail);
  };
}

function joinedRounds(known: Columns, fresh: Columns): number[] {
  const first = known.rounds[0] ?? 0;
  const last = fresh.rounds.at(-1) ?? known.rounds.at(-1) ?? first;
  return Array.from({ length: last - first + 1 }, (_, place) => first + place);
}

/** Cells in row-major order. */
export interface Grid {
  nodes: string[];
  rounds: number[];
  step: number;
  /** NaN if there is no finite value. */
  values: Float64Array;
  /** 0: no report, 1: value, 2: diverged. */
  kinds: Uint8Array;
  low: number;
  high: number;
}

const NOTHING = 0;
const VALUE = 1;
export const BAD = 2;

export function toGrid(heat: HeatMapData): Grid {
  const nodes = [...heat.rows.keys()].sort(naturalOrder);
  const width = heat.rounds.length;
  const values = new Float64Array(nodes.length * width);
  const kinds = new Uint8Array(nodes.length * width);
  nodes.forEach((node, row) => {
    const cells = heat.rows.get(node) as Cell[];
    for (let column = 0; column < width; column++) {
      const value = cells[column] ?? null;
      values[row * width + column] = value ?? NaN;
      kinds[row * width + column] = value === null ? NOTHING : Number.isFinite(value) ? VALUE : BAD;
    }
  });
  return { nodes, rounds: heat.rounds, step: heat.step, values, kinds, ...colorRange(values) };
}

const SAMPLES = 4000;

/** Return the range of the color scale: nearly all values, so that an outlier does not compress the rest. */
export function colorRange(values: ArrayLike<number>): { low: number; high: number } {
  const stride = Math.max(1, Math.floor(values.length / SAMPLES));
  const sample: number[] = [];
  for (let place = 0; place < values.length; place += stride) {
    const value = values[place] as number;
    if (Number.isFinite(value)) sample.push(value);
  }
  if (sample.length === 0) return { low: 0, high: 1 };
  sample.sort((a, b) => a - b);
  const at = (share: number) => sample[Math.round(share * (sample.length - 1))] as number;
  const [low, high] = [at(0.02), at(0.98)];
  return high > low ? { low, high } : { low, high: low + (Math.abs(low) || 1) };
}

export function cellAt(grid: Grid, row: number, column: number): Cell {
  const place = row * grid.rounds.length + column;
  return grid.kinds[place] === NOTHING ? null : grid.kinds[place] === BAD ? NaN : (grid.values[place] as number);
}

export interface Summary {
  node: string;
  newest: Cell;
  mean: Cell;
  low: Cell;
  high: Cell;
  diverged: number;
}

/** Summarize each client's values, as the text alternative of the heat map. */
export function summarizeClients(grid: Grid): Summary[] {
  return grid.nodes.map((node, row) => {
    const cells = grid.rounds.map((_, column) => cellAt(grid, row, column)).filter((value) => value !== null);
    const finite = cells.filter(Number.isFinite);
    const sum = finite.reduce((total, value) => total + value, 0);
    const some = finite.length > 0;
    return {
      node,
      newest: cells.at(-1) ?? null,
      mean: some ? sum / finite.length : null,
      low: some ? Math.min(...finite) : null,
      high: some ? Math.max(...finite) : null,
      diverged: cells.length - finite.length,
    };
  });
}

/** Return the client whose value at a column is nearest to `value`; undefined if none is within `reach`. */
export function nearestClient(grid: Grid, column: number, value: number, reach = Infinity): string | undefined {
  let found: string | undefined;
  let best = Infinity;
  grid.nodes.forEach((node, row) => {
    const distance = Math.abs((cellAt(grid, row, column) ?? NaN) - value);
    if (distance < best && distance <= reach) [found, best] = [node, distance];
  });
  return found;
}
