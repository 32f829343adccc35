import type { Version } from "../api/types";
import { wordsFor } from "../format/metric";
import { bytes, count, DIVERGED, UNKNOWN } from "../format/number";
import { duration } from "../format/time";
import { capital, type Unit } from "../format/unit";
import { toCsv } from "./csv";

interface Props {
  versions: Version[];
  names: string[];
  unit: Unit;
  write: (value: number | undefined) => string;
}

/** A chart's data, newest first. */
export function SeriesTable({ versions, names, unit, write }: Props) {
  return (
    <table className="data-table">
      <thead>
        <tr>
          <th scope="col" className="num">
            {capital(unit)}
          </th>
          <th scope="col" className="num">
            Time
          </th>
          <th scope="col" className="num">
            Bytes
          </th>
          {names.map((name) => (
            <th key={name} scope="col" className="num">
              {wordsFor(name)}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {versions.toReversed().map((version) => (
          <tr key={version.number}>
            <th scope="row" className="num">
              {count(version.number)}
            </th>
            <td className="num">{duration(version.elapsed_s)}</td>
            <td className="num">{bytes(version.total_bytes)}</td>
            {names.map((name) => (
              <td key={name} className="num">
                {cell(version.metrics[name], write)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** The same, oldest first, for a file. */
export const seriesCsv = (versions: Version[], names: string[], unit: Unit): string =>
  toCsv(
    [unit, "elapsed_s", "total_bytes", ...names],
    versions.map((version) => [
      version.number,
      version.elapsed_s,
      version.total_bytes,
      ...names.map((name) => version.metrics[name]),
    ]),
  );

function cell(value: number | undefined, write: Props["write"]) {
  if (value === undefined) return UNKNOWN;
  return Number.isFinite(value) ? write(value) : <b className="bad">{`${DIVERGED} (${value})`}</b>;
}
