import type { Version } from "../api/types";
import { wordsFor } from "../format/metric";
import { bytes, count, DIVERGED, UNKNOWN } from "../format/number";
import { duration } from "../format/time";
import type { Spread } from "../clients/spread";
import { visible } from "../format/text";
import { capital, type Unit } from "../format/unit";
import { toCsv } from "./csv";
import type { Point } from "./series";

interface Props {
  versions: Version[];
  names: string[];
  unit: Unit;
  spread: Spread | undefined;
  write: (value: number | undefined) => string;
}

/** A chart's data, newest first. */
export function SeriesTable({ versions, names, unit, spread, write }: Props) {
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
          {around(spread).map(([name]) => (
            <th key={name} scope="col" className="num">
              <bdi>{visible(name)}</bdi>
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {versions
          .map((version, index): [Version, number] => [version, index])
          .reverse()
          .map(([version, index]) => (
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
            {around(spread).map(([name, values]) => (
              <td key={name} className="num">
                {cell(values[index] === null ? NaN : values[index], write)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** What lies around the lines, by name. */
function around(spread: Spread | undefined): [string, Point[]][] {
  if (spread === undefined) return [];
  const band: [string, Point[]][] = [
    ["10 % of nodes", spread.low],
    ["90 % of nodes", spread.high],
  ];
  return spread.name === "" ? band : [...band, [spread.name, spread.alone]];
}

/** The same, oldest first, for a file. */
export const seriesCsv = (versions: Version[], names: string[], unit: Unit, spread: Spread | undefined): string =>
  toCsv(
    [unit, "elapsed_s", "total_bytes", ...names, ...around(spread).map(([name]) => name)],
    versions.map((version, index) => [
      version.number,
      version.elapsed_s,
      version.total_bytes,
      ...names.map((name) => version.metrics[name]),
      ...around(spread).map(([, values]) => (values[index] === null ? NaN : values[index])),
    ]),
  );

function cell(value: number | undefined, write: Props["write"]) {
  if (value === undefined) return UNKNOWN;
  return Number.isFinite(value) ? write(value) : <b className="bad">{`${DIVERGED} (${value})`}</b>;
}
