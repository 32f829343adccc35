import { useCallback, useMemo, useState } from "react";
import uPlot from "uplot";
import type { Version } from "../api/types";
import { bytes, count, plural } from "../format/number";
import { capital, type Unit } from "../format/unit";
import { shortBytes } from "./axis";
import { ChartFrame } from "./ChartFrame";
import { toCsv } from "./csv";
import { pointer, xAxis, xScale, yAxis, zoomHooks } from "./options";
import { Plot } from "./Plot";
import { buildTraffic } from "./series";
import { useTokens, type Tokens } from "./tokens";
import { useZoom, type KeptZoom } from "./zoom";

const HEIGHT = 188;
const SYNC = "traffic";

interface Props {
  versions: Version[];
  unit: Unit;
  up: number;
  down: number;
}

/** Bytes per round or version, up above the line and down below it. */
export function TrafficChart({ versions, unit, up, down }: Props) {
  const tokens = useTokens();
  const [hovered, setHovered] = useState<number | null>(null);
  const kept = useZoom("zoom.bytes", SYNC);
  const { zoom, keep } = kept;
  const traffic = useMemo(() => buildTraffic(versions), [versions]);
  const data = useMemo(() => [traffic.x, traffic.up, traffic.down] as uPlot.AlignedData, [traffic]);
  const make = useCallback(
    (width: number, height: number) => options(width, height, tokens, { zoom, keep }, setHovered),
    [tokens, zoom, keep],
  );
  const at = hovered !== null && hovered < traffic.x.length ? hovered : traffic.x.length - 1;
  const number = traffic.x[at];
  const empty = traffic.x.length === 0 ? `No ${unit} has closed yet.` : null;
  return (
    <ChartFrame
      title={`Bytes per ${unit}`}
      testId="chart-bytes"
      label={`Bytes per ${unit}: ${bytes(up)} up and ${bytes(down)} down in ${plural(traffic.x.length, unit)}`}
      height={HEIGHT}
      zoom={kept}
      empty={empty}
      readout={
        number !== undefined && (
          <>
            <span className="readout-item">
              <i className="swatch block up" />
              up <b>{bytes(traffic.up[at] ?? 0)}</b>
            </span>
            <span className="readout-item">
              <i className="swatch block down" />
              down <b>{bytes(-(traffic.down[at] ?? 0))}</b>
            </span>
            <span className="readout-place">{unit} {count(number)}</span>
          </>
        )
      }
      plot={<Plot make={make} data={data} height={HEIGHT} />}
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

function options(
  width: number,
  height: number,
  tokens: Tokens,
  { zoom, keep }: Pick<KeptZoom, "zoom" | "keep">,
  moved: (index: number | null) => void,
): uPlot.Options {
  const { cursor, plugin } = pointer(tokens, SYNC, moved);
  const bars = uPlot.paths.bars?.({ size: [0.72, 22] });
  const bar = (label: string, fill: string): uPlot.Series => ({
    label,
    fill,
    width: 0,
    paths: bars,
    points: { show: false },
  });
  return {
    width,
    height,
    cursor: { ...cursor, points: { show: false } },
    plugins: [plugin, zoomHooks(zoom, SYNC, keep), zeroLine(tokens)],
    legend: { show: false },
    padding: [8, 18, 0, 0],
    scales: {
      x: xScale(zoom, 0.6),
      y: { range: (_, low, high) => [Math.min(low ?? 0, 0) * 1.06, Math.max(high ?? 1, 1) * 1.06] },
    },
    axes: [xAxis("round", tokens), { ...yAxis(tokens, (value) => shortBytes(Math.abs(value))), size: 60 }],
    series: [{}, bar("up", tokens.up), bar("down", tokens.down)],
  };
}

function zeroLine(tokens: Tokens): uPlot.Plugin {
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
  return (
    <table className="data-table">
      <thead>
        <tr>
          <th scope="col" className="num">
            {capital(unit)}
          </th>
          <th scope="col" className="num">
            Reports
          </th>
          <th scope="col" className="num">
            Up
          </th>
          <th scope="col" className="num">
            Down
          </th>
          <th scope="col" className="num">
            Total so far
          </th>
        </tr>
      </thead>
      <tbody>
        {versions
          .filter((version) => version.number > 0)
          .toReversed()
          .map((version) => (
            <tr key={version.number}>
              <th scope="row" className="num">
                {count(version.number)}
              </th>
              <td className="num">
                {count(version.reports)}
                {unit === "round" && ` of ${count(version.asked)}`}
              </td>
              <td className="num">{bytes(version.up_bytes)}</td>
              <td className="num">{bytes(version.down_bytes)}</td>
              <td className="num">{bytes(version.total_bytes)}</td>
            </tr>
          ))}
      </tbody>
    </table>
  );
}
