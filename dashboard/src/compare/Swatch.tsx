/** Number of series colors; further runs repeat them with dashed lines. */
export const COLORS = 4;

export const isDashed = (run: number): boolean => Math.floor(run / COLORS) % 2 === 1;

/** The color and dash of a run in the charts. */
export function Swatch({ run }: { run: number }) {
  return <i className={`swatch series-${(run % COLORS) + 1}${isDashed(run) ? " dashed" : ""}`} />;
}
