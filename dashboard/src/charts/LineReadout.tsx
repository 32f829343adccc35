import type { Version } from "../api/types";
import { colourOf, isWhileTraining, wordsFor } from "../format/metric";
import type { Unit } from "../format/unit";
import { place, type Axis } from "./axis";

interface Props {
  names: string[];
  versions: Version[];
  /** The version under the pointer; undefined for the newest. */
  at: Version | undefined;
  axis: Axis;
  unit: Unit;
  write: (value: number | undefined) => string;
}

/** The legend of a chart with the figures under the pointer, or the newest. */
export function LineReadout({ names, versions, at, axis, unit, write }: Props) {
  return (
    <>
      {names.map((name) => {
        const value = (at ?? newest(versions, name))?.metrics[name];
        const diverged = value !== undefined && !Number.isFinite(value);
        return (
          <span key={name} className="readout-item">
            <i className={`swatch series-${colourOf(name) + 1}${isWhileTraining(name) ? " dashed" : ""}`} />
            {wordsFor(name)} <b className={diverged ? "bad" : ""}>{write(value)}</b>
          </span>
        );
      })}
      <span className="readout-place">{at && place(at, axis, unit)}</span>
    </>
  );
}

/** The newest version that has a value of this name. */
export const newest = (versions: Version[], name: string): Version | undefined =>
  versions.findLast((version) => version.metrics[name] !== undefined);
