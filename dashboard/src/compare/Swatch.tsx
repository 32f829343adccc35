/** Number of series colours; further runs repeat them with dashed lines. */
export const COLOURS = 4;

export const isDashed = (run: number): boolean => Math.floor(run / COLOURS) % 2 === 1;

/** The colour and dash of a run in the charts. */
export function Swatch({ run }: { run: number }) {
  return <i className={`swatch series-${(run % COLOURS) + 1}${isDashed(run) ? " dashed" : ""}`} />;
}
