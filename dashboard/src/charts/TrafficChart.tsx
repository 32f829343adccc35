import { useMemo } from "react";
import uPlot from "uplot";
import type { Version } from "../api/types";
import type { Unit } from "../domain/unit";
import { formatBytes, formatCount, plural } from "../format/number";
import { capitalize } from "../format/text";
import { Table, type Column } from "../ui/Table";
import { shortBytes } from "./axis";
import { ChartFrame } from "./ChartFrame";
import { toCsv } from "./csv";
import { xAxis, xScale, yAxis, type ZoomRef } from "./plotOptions";
import { buildTraffic } from "./series";
import type { Tokens } from "./tokens";
import { useChart, type PlotOptions } from "./useChart";
import { useZoom } from "./useZoom";

const HEIGHT = 204;
const SYNC = "traffic";

interface Props {
  versions: Version[];
  unit: Unit;
  /** Bytes of the whole job. */
  up: number;
  down: number;
}

/** Chart of the bytes per round or version: uploads above the line, downloads below it. */
export function TrafficChart({ versions, unit, up, down }: Props) {
  const zoom = useZoom("zoom.bytes", SYNC);
  const traffic = useMemo(() => buildTraffic(versions), [versions]);
  const data = useMemo(() => [traffic.x, traffic.up, traffic.down] as uPlot.AlignedData, [traffic]);
  const options = (tokens: Tokens) => bytesOptions(tokens, unit, zoom.zoom);
  const { plot, pointed } = useChart({ data, height: HEIGHT, sync: SYNC, zoom, options }, [unit]);
  const at = pointed !== null && pointed < traffic.x.length ? pointed : traffic.x.length - 1;
  const number = traffic.x[at];
  return (
    <ChartFrame
      title={`Traffic per ${unit} (bytes up and down)`}
      testId="chart-bytes"
      label={`Traffic per ${unit}: ${formatBytes(up)} up and ${formatBytes(down)} down in ${plural(traffic.x.length, unit)}`}
      height={HEIGHT}
      zoom={zoom}
      empty={traffic.x.length === 0 ? `No ${unit} has closed yet.` : null}
      legend={
        number !== undefined && (
          <>
            <span className="readout-item">
              <i className="swatch block up" />
              up <b>{formatBytes(traffic.up[at] ?? 0)}</b>
            </span>
            <span className="readout-item">
              <i className="swatch block down" />
              down <b>{formatBytes(-(traffic.down[at] ?? 0))}</b>
            </span>
            <span className="readout-place">
              {unit} {formatCount(number)}
            </span>
          </>
        )
      }
      plot={plot}
      table={() => <TrafficTable versions={versions} unit={unit} />}
      csv={() =>
        toCsv(
          [unit, "reports", "up_bytes", "down_bytes", "total_bytes"],
          versions.map((one) => [one.number, one.reports, one.up_bytes, one.down_bytes, one.total_bytes]),
        )
      }
    />
  );
}

/** Return the options of a chart of bytes: bars of uploads above the line, of downloads below it. */
export function bytesOptions(tokens: Tokens, unit: Unit, zoom: ZoomRef) {
  const paths = uPlot.paths.bars?.({ size: [0.72, 22] });
  const bar = (label: string, fill: string): uPlot.Series => ({ label, fill, width: 0, paths, points: { show: false } });
  return {
    hasCursorPoints: false,
    plugins: [zeroLinePlugin(tokens)],
    padding: [8, 18, 0, 0],
    scales: {
      x: xScale(zoom, 0.6),
      y: { range: (_, low, high) => [Math.min(low ?? 0, 0) * 1.06, Math.max(high ?? 1, 1) * 1.06] },
    },
    axes: [xAxis("round", unit, tokens), { ...yAxis("bytes (down | up)", tokens, (value) => shortBytes(Math.abs(value))), size: 60 }],
    series: [{}, bar("up", tokens.up), bar("down", tokens.down)],
  } satisfies PlotOptions;
}

function zeroLinePlugin(tokens: Tokens): uPlot.Plugin {
  return {
    hooks: {
      draw: ({ ctx, bbox, valToPos }) => {
        ctx.fillStyle = tokens.ink3;
        ctx.fillRect(bbox.left, Math.round(valToPos(0, "y", true)), bbox.width, devicePixelRatio);
      },
    },
  };
}

function TrafficTable({ versions, unit }: Pick<Props, "versions" | "unit">) {
  const rows = versions.filter((version) => version.number > 0).toReversed();
  const columns: Column<Version>[] = [
    { title: capitalize(unit), numeric: true, cell: ({ number }) => formatCount(number) },
    {
      title: "Reports",
      numeric: true,
      cell: ({ reports, asked }) => (unit === "round" ? `${formatCount(reports)} of ${formatCount(asked)}` : formatCount(reports)),
    },
    { title: "Up", numeric: true, cell: ({ up_bytes }) => formatBytes(up_bytes) },
    { title: "Down", numeric: true, cell: ({ down_bytes }) => formatBytes(down_bytes) },
    { title: "Total", numeric: true, cell: ({ total_bytes }) => formatBytes(total_bytes) },
  ];
  return <Table columns={columns} rows={rows} rowKey={({ number }) => number} />;
}
