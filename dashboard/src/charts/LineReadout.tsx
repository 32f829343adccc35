import type { Version } from "../api/types";
import { colourOf, isWhileTraining, wordsFor } from "../format/metric";
import { UNKNOWN } from "../format/number";
import { visible } from "../format/text";
import type { Spread } from "../clients/spread";

interface Props {
  names: string[];
  /** The version whose figures are shown. */
  at: Version | undefined;
  write: (value: number | undefined) => string;
}

/** The legend of a chart, with figures of one version. */
export function LineReadout({ names, at, write }: Props) {
  return (
    <>
      {names.map((name) => {
        const value = at?.metrics[name];
        const diverged = value !== undefined && !Number.isFinite(value);
        return (
          <span key={name} className="readout-item">
            <i className={`swatch series-${colourOf(name) + 1}${isWhileTraining(name) ? " dashed" : ""}`} />
            {wordsFor(name)} <b className={diverged ? "bad" : ""}>{write(value)}</b>
          </span>
        );
      })}
    </>
  );
}

interface SpreadProps {
  spread: Spread;
  /** The place under the pointer; null for the newest. */
  at: number | null;
  /** The colour of the line that it lies around, an index into the theme's series. */
  colour: number;
  write: (value: number | undefined) => string;
}

/** The band of clients and the one that stands out, under the pointer or where they were told last. */
export function SpreadReadout({ spread: { low, high, name, alone }, at, colour, write }: SpreadProps) {
  const place = at ?? low.findLastIndex((value) => value !== undefined);
  const own = alone[at ?? alone.findLastIndex((value) => value !== undefined)];
  return (
    <>
      <span className="readout-item">
        <i className={`swatch block band around-${colour + 1}`} /> <abbr title="between these lie the middle 80 % of nodes">10–90 %</abbr>{" "}
        <b>
          {low[place] === undefined ? UNKNOWN : `${write(low[place] ?? undefined)} – ${write(high[place] ?? undefined)}`}
        </b>
      </span>
      {name !== "" && (
        <span className="readout-item">
          <i className="swatch alone" /> <bdi>{visible(name)}</bdi>{" "}
          <b className={own === null ? "bad" : ""}>{write(own === null ? NaN : own)}</b>
        </span>
      )}
    </>
  );
}

/** The newest version that has a value of this name. */
export const newest = (versions: Version[], name: string): Version | undefined =>
  versions.findLast((version) => version.metrics[name] !== undefined);
