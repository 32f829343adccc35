import { useCallback, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import { ChartFrame } from "../charts/ChartFrame";
import { divergedMarks } from "../charts/diverged";
import { shortFigure } from "../charts/axis";
import { pointer, xAxis, xScale, yAxis, zoomHooks } from "../charts/options";
import { picking, type Pick } from "../charts/picking";
import { Plot } from "../charts/Plot";
import type { Point } from "../charts/series";
import { useTokens, type Tokens } from "../charts/tokens";
import { useZoom, type KeptZoom } from "../charts/zoom";
import { count } from "../format/number";
import { visible } from "../format/text";
import type { Unit } from "../format/unit";
import { heatCsv } from "./HeatMap";
import { cellOf, gridOf, nearest, type Bands, type Cell, type Grid, type Heat } from "./heat";
import { titleOf, write } from "./quantity";

interface Props {
  heat: Heat;
  bands: Bands | undefined;
  metric: string;
  unit: Unit;
  isolated: string;
  onIsolate: (node: string) => void;
}

const HEIGHT = 260;
/** More clients than that are a cloud: their band tells more. */
const LINES_MAX = 128;
const SYNC = "clients";

/** Every client's line, the mean with the band in which most clients lie, and one client before all others. */
export function ClientLines({ heat, bands, metric, unit, isolated, onIsolate }: Props) {
  const tokens = useTokens();
  const kept = useZoom("zoom.clients", SYNC);
  const { zoom, keep } = kept;
  const [pointed, setPointed] = useState<number | null>(null);
  const grid = useMemo(() => gridOf(heat), [heat]);
  const names = useMemo(() => (grid.nodes.length <= LINES_MAX ? grid.nodes : []), [grid]);
  const joined = names.join("\n");
  const data = useMemo(() => series(grid, names, bands, isolated), [grid, names, bands, isolated]);
  const current = useRef({ grid, data });
  current.current = { grid, data };
  const make = useCallback(
    (width: number, height: number) =>
      options({
        size: [width, height],
        lines: joined === "" ? 0 : joined.split("\n").length,
        isolated: isolated !== "",
        tokens,
        zoom: { zoom, keep },
        marks: () => marksOf(current.current.data),
        write: (value) => (metric === "norm" || metric.includes("/") ? shortFigure(value) : write(metric, value)),
        onPoint: setPointed,
        onPick: (column, value, reach) => {
          const node = nearest(current.current.grid, column, value, reach);
          onIsolate(node === undefined || node === isolated ? "" : node);
        },
      }),
    [tokens, zoom, keep, joined, metric, isolated, onIsolate],
  );
  const at = pointed ?? grid.rounds.length - 1;
  const row = grid.nodes.indexOf(isolated);
  return (
    <ChartFrame
      title={`${titleOf(metric)}: each client`}
      testId="client-lines"
      label={`${titleOf(metric)} of ${count(grid.nodes.length)} clients by ${unit}, with their mean and the band of the middle 80 %`}
      height={HEIGHT}
      zoom={kept}
      empty={grid.rounds.length === 0 ? "No client has reported this yet." : null}
      readout={
        <>
          <span className="readout-item">
            <i className="swatch series-1" /> mean <b>{write(metric, bands?.mean[at])}</b>
          </span>
          <span className="readout-item">
            <i className="swatch block band" /> 10–90 % of clients{" "}
            <b>
              {write(metric, bands?.low[at])} – {write(metric, bands?.high[at])}
            </b>
          </span>
          {row >= 0 && (
            <span className="readout-item">
              <i className="swatch series-2" /> <bdi>{visible(isolated)}</bdi> <b>{write(metric, cellOf(grid, row, at))}</b>
            </span>
          )}
          <span className="readout-place">
            {unit} {count(grid.rounds[at] ?? 0)}
          </span>
        </>
      }
      plot={<Plot make={make} data={data} height={HEIGHT} />}
      table={() => <BandTable grid={grid} bands={bands} metric={metric} unit={unit} />}
      csv={() => heatCsv(grid, unit)}
    />
  );
}

/** x, then every line, the two edges of the band, the mean, and the client that stands out. */
function series(grid: Grid, names: string[], bands: Bands | undefined, isolated: string): uPlot.AlignedData {
  const line = (row: number): Point[] => grid.rounds.map((_, column) => point(cellOf(grid, row, column)));
  const band = (of: Cell[] | undefined): Point[] => {
    const known = new Map(bands?.rounds.map((round, index) => [round, of?.[index] ?? null]));
    return grid.rounds.map((round) => point(known.get(round) ?? null));
  };
  const alone = grid.nodes.indexOf(isolated);
  return [
    grid.rounds,
    ...names.map((_, row) => line(row)),
    band(bands?.high),
    band(bands?.low),
    band(bands?.mean),
    alone < 0 ? grid.rounds.map(() => undefined) : line(alone),
  ] as uPlot.AlignedData;
}

const point = (value: Cell): Point => (value === null ? undefined : Number.isFinite(value) ? value : null);

/** Crosses for the mean and for the one that stands out: those of a hundred lines would be a fence. */
function marksOf(data: uPlot.AlignedData) {
  const y = data.slice(-2) as Point[][];
  const x = data[0] as number[];
  const every = data.slice(1) as Point[][];
  const diverged = x.map((_, index) => index).filter((index) => every.some((line) => line[index] === null));
  return { x, y, diverged };
}

interface Settings {
  size: [number, number];
  lines: number;
  isolated: boolean;
  tokens: Tokens;
  zoom: Omit<KeptZoom, "range" | "showAll">;
  marks: () => ReturnType<typeof marksOf>;
  write: (value: number) => string;
  onPoint: (index: number | null) => void;
  onPick: Pick;
}

function options({ size, lines, isolated, tokens, zoom, marks, write, onPoint, onPick }: Settings): uPlot.Options {
  const { cursor, plugin } = pointer(tokens, SYNC, onPoint);
  const faint: uPlot.Series = {
    stroke: tokens.ink3,
    width: 1,
    alpha: isolated ? 0.12 : 0.3,
    points: { show: false },
  };
  const edge: uPlot.Series = { stroke: "transparent", width: 0, points: { show: false } };
  const strong = (stroke: string | undefined): uPlot.Series => ({
    stroke: stroke ?? tokens.ink2,
    width: 2,
    points: { show: (plot) => plot.data[0].length <= 2, size: 5 },
  });
  return {
    width: size[0],
    height: size[1],
    cursor: { ...cursor, points: { show: false } },
    plugins: [
      plugin,
      zoomHooks(zoom.zoom, SYNC, zoom.keep),
      divergedMarks(marks, [tokens.series[0] ?? tokens.ink2, tokens.series[1] ?? tokens.ink2], tokens, "top"),
      picking(onPick),
    ],
    legend: { show: false },
    padding: [14, 18, 0, 0],
    scales: {
      x: xScale(zoom.zoom),
      y: { range: (_, low, high) => (low === null || high === null ? [0, 1] : padded(low, high)) },
    },
    axes: [xAxis("round", tokens), { ...yAxis(tokens, write), size: 62 }],
    series: [{}, ...Array.from({ length: lines }, () => faint), edge, edge, strong(tokens.series[0]), strong(tokens.series[1])],
    bands: [{ series: [lines + 1, lines + 2], fill: `${tokens.series[0]}33` }],
  };
}

const padded = (low: number, high: number): [number, number] =>
  high > low ? [low - (high - low) * 0.05, high + (high - low) * 0.12] : [low - 0.5, high + 0.5];

function BandTable({ grid, bands, metric, unit }: { grid: Grid; bands: Bands | undefined; metric: string; unit: Unit }) {
  return (
    <table className="data-table">
      <thead>
        <tr>
          {[unit, "10 %", "Mean", "90 %"].map((name) => (
            <th key={name} scope="col" className="num">
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {grid.rounds
          .map((round, index) => (
            <tr key={round}>
              <th scope="row" className="num">
                {count(round)}
              </th>
              {[bands?.low[index], bands?.mean[index], bands?.high[index]].map((value, place) => (
                <td key={place} className="num">
                  {write(metric, value)}
                </td>
              ))}
            </tr>
          ))
          .reverse()}
      </tbody>
    </table>
  );
}
