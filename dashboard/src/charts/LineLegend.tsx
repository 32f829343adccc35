import type { Version } from "../api/types";
import { isTrainingMetric, metricLabel, seriesIndex } from "../domain/metrics";
import { UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import type { ClientSpread } from "./clientSpread";

interface Props {
  names: string[];
  /** The version whose values are shown. */
  at: Version | undefined;
  format: (value: number | undefined) => string;
}

/** Legend of a chart with the values of one version. */
export function LineLegend({ names, at, format }: Props) {
  return (
    <>
      {names.map((name) => {
        const value = at?.metrics[name];
        const isDiverged = value !== undefined && !Number.isFinite(value);
        return (
          <span key={name} className="readout-item">
            <i className={`swatch series-${seriesIndex(name) + 1}${isTrainingMetric(name) ? " dashed" : ""}`} />
            {metricLabel(name)} <b className={isDiverged ? "bad" : ""}>{format(value)}</b>
          </span>
        );
      })}
    </>
  );
}

interface SpreadProps {
  spread: ClientSpread;
  /** The index of the version; null: the newest that has a value. */
  at: number | null;
  /** Index into the theme's series colors. */
  color: number;
  format: (value: number | undefined) => string;
}

/** Legend of the band of clients and of the highlighted client. */
export function SpreadLegend({ spread: { low, high, name, highlighted }, at, color, format }: SpreadProps) {
  const place = at ?? low.findLastIndex((value) => value !== undefined);
  const own = highlighted[at ?? highlighted.findLastIndex((value) => value !== undefined)];
  return (
    <>
      <span className="readout-item">
        <i className={`swatch block band around-${color + 1}`} /> <abbr title="the middle 80 % of nodes">10–90 %</abbr>{" "}
        <b>
          {low[place] === undefined ? UNKNOWN : `${format(low[place] ?? undefined)} – ${format(high[place] ?? undefined)}`}
        </b>
      </span>
      {name !== "" && (
        <span className="readout-item">
          <i className="swatch alone" /> <bdi>{escapeHidden(name)}</bdi>{" "}
          <b className={own === null ? "bad" : ""}>{format(own === null ? NaN : own)}</b>
        </span>
      )}
    </>
  );
}

/** Return the newest version that has a value of this metric. */
export const latestWith = (versions: Version[], name: string): Version | undefined =>
  versions.findLast((version) => version.metrics[name] !== undefined);
