/** The geometry of a sparkline. */

export interface Spark {
  line: string;
  area: string;
  /** The last point; null if it diverged. */
  end: [x: number, y: number] | null;
  /** x of the values that are not finite. */
  crosses: number[];
}

const PAD = 4;

/** Return null if there is nothing to draw. Missing values are skipped. */
export function sparkPath(values: (number | undefined)[], width: number, height: number): Spark | null {
  const measured = values.filter((value) => value !== undefined);
  if (measured.length === 0) return null;
  const finite = measured.filter((value) => Number.isFinite(value));
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  const across = (index: number) => round(PAD + (index / Math.max(1, measured.length - 1)) * (width - 2 * PAD));
  const points: [number, number][] = [];
  const crosses: number[] = [];
  measured.forEach((value, index) => {
    if (!Number.isFinite(value)) crosses.push(across(index));
    else points.push([across(index), round(height - PAD - ((value - low) / span) * (height - 2 * PAD))]);
  });
  const line = points.map(([x, y], index) => `${index === 0 ? "M" : "L"}${x} ${y}`).join("");
  const first = points[0];
  const last = points.at(-1);
  const area = first && last ? `${line}L${last[0]} ${height}L${first[0]} ${height}Z` : "";
  return { line, area, end: Number.isFinite(measured.at(-1)) ? (last ?? null) : null, crosses };
}

const round = (value: number) => Math.round(value * 10) / 10;
