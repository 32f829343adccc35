import { useMemo } from "react";
import type { Version } from "../api/types";
import { metricLabel } from "../domain/metrics";
import type { Unit } from "../domain/unit";
import { DIVERGED, formatBytes, formatCount, UNKNOWN } from "../format/number";
import { capitalize, escapeHidden } from "../format/text";
import { formatDuration } from "../format/time";
import { Table, type Column } from "../ui/Table";
import type { ClientSpread } from "./clientSpread";
import { toCsv } from "./csv";
import type { Point } from "./series";

interface Props {
  versions: Version[];
  names: string[];
  unit: Unit;
  spread: ClientSpread | undefined;
  format: (value: number | undefined) => string;
}

interface Row {
  version: Version;
  /** The index of the version. */
  index: number;
}

/** Table of a chart's data, newest first. */
export function SeriesTable({ versions, names, unit, spread, format }: Props) {
  const rows = useMemo(() => versions.map((version, index): Row => ({ version, index })).reverse(), [versions]);
  const columns: Column<Row>[] = [
    { title: capitalize(unit), numeric: true, cell: ({ version }) => formatCount(version.number) },
    { title: "Time", numeric: true, cell: ({ version }) => formatDuration(version.elapsed_s) },
    { title: "Bytes", numeric: true, cell: ({ version }) => formatBytes(version.total_bytes) },
    ...names.map((name): Column<Row> => ({
      title: name,
      heading: metricLabel(name),
      numeric: true,
      cell: ({ version }) => formatCell(version.metrics[name], format),
    })),
    ...spreadLines(spread).map(([name, values]): Column<Row> => ({
      title: `spread ${name}`,
      heading: <bdi>{escapeHidden(name)}</bdi>,
      numeric: true,
      cell: ({ index }) => formatCell(values[index] === null ? NaN : values[index], format),
    })),
  ];
  return <Table columns={columns} rows={rows} rowKey={({ version }) => version.number} />;
}

/** Return the lines of the clients' spread by name. */
function spreadLines(spread: ClientSpread | undefined): [string, Point[]][] {
  if (spread === undefined) return [];
  const band: [string, Point[]][] = [
    ["10 % of nodes", spread.low],
    ["90 % of nodes", spread.high],
  ];
  return spread.name === "" ? band : [...band, [spread.name, spread.highlighted]];
}

/** Return a chart's data as CSV, oldest first. */
export const seriesCsv = (versions: Version[], names: string[], unit: Unit, spread: ClientSpread | undefined): string =>
  toCsv(
    [unit, "elapsed_s", "total_bytes", ...names, ...spreadLines(spread).map(([name]) => name)],
    versions.map((version, index) => [
      version.number,
      version.elapsed_s,
      version.total_bytes,
      ...names.map((name) => version.metrics[name]),
      ...spreadLines(spread).map(([, values]) => (values[index] === null ? NaN : values[index])),
    ]),
  );

function formatCell(value: number | undefined, format: Props["format"]) {
  if (value === undefined) return UNKNOWN;
  return Number.isFinite(value) ? format(value) : <b className="bad">{`${DIVERGED} (${value})`}</b>;
}
