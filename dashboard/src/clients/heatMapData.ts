/** A quantity by client and round, as the heat map and the lines draw it. */
import { reviveNumber } from "../api/revive";
import type { RawBands, RawHeat } from "../api/types";
import { byNumber } from "../format/text";

/** null: nothing was reported; NaN: it diverged. */
export type Cell = number | null;

export interface Heat {
  /** The first round of each column, `step` apart. */
  rounds: number[];
  step: number;
  /** By client, as many cells as there are columns. */
  rows: Map<string, Cell[]>;
  /** All that can be asked for. */
  metrics: string[];
  /** Clients in all; there may be more than rows. */
  nodes: number;
}

export interface Bands {
  rounds: number[];
  step: number;
  mean: Cell[];
  low: Cell[];
  high: Cell[];
}

export const cell = (value: unknown): Cell => (value === null ? null : (reviveNumber(value) ?? NaN));

/** The pages of one answer, put together. */
export function reviveHeat(pages: RawHeat[]): Heat {
  const rows = new Map<string, Cell[]>();
  for (const { node, values } of pages.flatMap((page) => page.rows)) rows.set(node, values.map(cell));
  const [first] = pages;
  return {
    rounds: first?.rounds ?? [],
    step: first?.step ?? 1,
    rows,
    metrics: first?.metrics ?? [],
    nodes: first?.nodes ?? 0,
  };
}

/** Where nothing is finite but something was reported, all of it diverged. */
export function reviveBands({ rounds, step, mean, low, high, diverged }: RawBands): Bands {
  const bad = (values: Cell[]) => values.map((value, index) => (value === null && diverged[index] ? NaN : value));
  return { rounds, step, mean: bad(mean), low, high };
}

/** Columns of before with those of `fresh` in their place; null where they do not fit, and all has to be asked for. */
export function mergeHeat(known: Heat, fresh: Heat): Heat | null {
  const splice = splicer(known, fresh);
  if (splice === null) return null;
  const names = new Set([...known.rows.keys(), ...fresh.rows.keys()]);
  const rows = new Map([...names].map((node) => [node, splice(known.rows.get(node), fresh.rows.get(node))]));
  return { ...fresh, rounds: rounds(known, fresh), rows };
}

export function mergeBands(known: Bands, fresh: Bands): Bands | null {
  const splice = splicer(known, fresh);
  if (splice === null) return null;
  const join = (name: "mean" | "low" | "high") => splice(known[name], fresh[name]);
  return { step: 1, rounds: rounds(known, fresh), mean: join("mean"), low: join("low"), high: join("high") };
}

interface Columns {
  rounds: number[];
  step: number;
}

function splicer(known: Columns, fresh: Columns): ((before?: Cell[], after?: Cell[]) => Cell[]) | null {
  const [first] = known.rounds;
  const [next] = fresh.rounds;
  if (known.step !== 1 || fresh.step !== 1 || first === undefined) return null;
  if (next === undefined) return (before = []) => before;
  const kept = next - first;
  if (kept < 0) return null;
  return (before = [], after = []) => {
    const head = before.slice(0, kept);
    while (head.length < kept) head.push(null); // rounds of which nothing was told
    const tail = after.length === fresh.rounds.length ? after : fresh.rounds.map(() => null);
    return head.concat(tail);
  };
}

function rounds(known: Columns, fresh: Columns): number[] {
  const first = known.rounds[0] ?? 0;
  const last = fresh.rounds.at(-1) ?? known.rounds.at(-1) ?? first;
  return Array.from({ length: last - first + 1 }, (_, place) => first + place);
}

/** What a canvas draws: rows by name, cell after cell. */
export interface Grid {
  nodes: string[];
  rounds: number[];
  step: number;
  /** Row by row; NaN where there is no finite value. */
  values: Float64Array;
  /** 0: nothing reported, 1: a value, 2: diverged. */
  kinds: Uint8Array;
  low: number;
  high: number;
}

const NOTHING = 0;
const VALUE = 1;
export const BAD = 2;

export function gridOf(heat: Heat): Grid {
  const nodes = [...heat.rows.keys()].sort(byNumber);
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
  return { nodes, rounds: heat.rounds, step: heat.step, values, kinds, ...spread(values) };
}

const SAMPLES = 4000;

/** Between which values the colours run: nearly all of them, so that a single outlier does not grey out the rest. */
export function spread(values: ArrayLike<number>): { low: number; high: number } {
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

/** The cell of a client at a column. */
export function cellOf(grid: Grid, row: number, column: number): Cell {
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

/** Each client in a few figures, for those who do not look at colours. */
export function summaries(grid: Grid): Summary[] {
  return grid.nodes.map((node, row) => {
    const cells = grid.rounds.map((_, column) => cellOf(grid, row, column)).filter((value) => value !== null);
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

/** The client whose value at a column is nearest to `value`; undefined if nobody's is within `reach`. */
export function nearest(grid: Grid, column: number, value: number, reach = Infinity): string | undefined {
  let found: string | undefined;
  let best = Infinity;
  grid.nodes.forEach((node, row) => {
    const distance = Math.abs((cellOf(grid, row, column) ?? NaN) - value);
    if (distance < best && distance <= reach) [found, best] = [node, distance];
  });
  return found;
}
