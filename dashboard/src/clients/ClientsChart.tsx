import { useMemo } from "react";
import type uPlot from "uplot";
import { shortFigure } from "../charts/axis";
import { ChartFrame } from "../charts/ChartFrame";
import { clickPlugin, type OnPointClick } from "../charts/clickPlugin";
import { divergedPlugin } from "../charts/divergedPlugin";
import { BAND_EDGE } from "../charts/lineOptions";
import { xAxis, xScale, yAxis, type ZoomRef } from "../charts/plotOptions";
import { toPoint, type Lines, type Point } from "../charts/series";
import type { Tokens } from "../charts/tokens";
import { useChart, useLatest, type PlotOptions } from "../charts/useChart";
import { useZoom } from "../charts/useZoom";
import { formatReportMetric, reportChartTitle, reportMetricTitle } from "../domain/reportMetrics";
import type { Unit } from "../domain/unit";
import { formatCount } from "../format/number";
import { capitalize, escapeHidden } from "../format/text";
import { Table, type Column } from "../ui/Table";
import { heatMapCsv } from "./HeatMap";
import { cellAt, nearestClient, toGrid, type Bands, type Cell, type Grid, type HeatMapData } from "./heatMapData";

interface Props {
  data: HeatMapData;
  bands: Bands | undefined;
  metric: string;
  unit: Unit;
  /** The highlighted client; "": none. */
  selected: string;
  onSelect: (node: string) => void;
}

const HEIGHT = 276;
/** With more clients only their band is drawn. */
const LINES_MAX = 128;
const SYNC = "clients";

/** Chart of every client's values, with their mean, the band of the middle 80 % and a highlighted client. */
export function ClientsChart({ data, bands, metric, unit, selected, onSelect }: Props) {
  const zoom = useZoom("zoom.clients", SYNC);
  const grid = useMemo(() => toGrid(data), [data]);
  const lineCount = grid.nodes.length <= LINES_MAX ? grid.nodes.length : 0;
  const lines = useMemo(() => buildSeries(grid, lineCount, bands, selected), [grid, lineCount, bands, selected]);
  const onPointClick: OnPointClick = (column, value, radius) => {
    const node = nearestClient(grid, column, value, radius);
    onSelect(node === undefined || node === selected ? "" : node);
  };
  const latest = useLatest({ lines, onPointClick });
  const { plot, pointed } = useChart(
    {
      data: lines,
      height: HEIGHT,
      sync: SYNC,
      zoom,
      options: (tokens) =>
        plotOptions(tokens, {
          metric,
          unit,
          lineCount,
          isSelected: selected !== "",
          zoom: zoom.zoom,
          marks: () => divergedOf(latest.current.lines),
          format: (value) => (metric === "norm" || metric.includes("/") ? shortFigure(value) : formatReportMetric(metric, value)),
          onPointClick: (...point) => latest.current.onPointClick(...point),
        }),
    },
    [lineCount, metric, unit, selected],
  );
  const at = pointed ?? grid.rounds.length - 1;
  const row = grid.nodes.indexOf(selected);
  const format = (value: Cell | undefined) => formatReportMetric(metric, value);
  return (
    <ChartFrame
      title={`${reportChartTitle(metric)} of each node by ${unit}`}
      testId="client-lines"
      label={`${reportMetricTitle(metric)} of ${formatCount(grid.nodes.length)} nodes by ${unit}, with their mean and the band of the middle 80 %`}
      height={HEIGHT}
      zoom={zoom}
      empty={grid.rounds.length === 0 ? "No node has reported this metric yet." : null}
      legend={
        <>
          <span className="readout-item">
            <i className="swatch series-1" /> mean <b>{format(bands?.mean[at])}</b>
          </span>
          <span className="readout-item">
            <i className="swatch block band" /> 10–90 % of nodes{" "}
            <b>
              {format(bands?.low[at])} – {format(bands?.high[at])}
            </b>
          </span>
          {row >= 0 && (
            <span className="readout-item">
              <i className="swatch series-2" /> <bdi>{escapeHidden(selected)}</bdi> <b>{format(cellAt(grid, row, at))}</b>
            </span>
          )}
          <span className="readout-place">
            {unit} {formatCount(grid.rounds[at] ?? 0)}
          </span>
        </>
      }
      plot={plot}
      table={() => <BandTable grid={grid} bands={bands} metric={metric} unit={unit} />}
      csv={() => heatMapCsv(grid, unit)}
    />
  );
}

const cellToPoint = (cell: Cell): Point => toPoint(cell ?? undefined);

/** Return x, the lines of the clients, the upper and lower edge of the band, the mean, and the highlighted client. */
function buildSeries(grid: Grid, lineCount: number, bands: Bands | undefined, selected: string): uPlot.AlignedData {
  const line = (row: number): Point[] => grid.rounds.map((_, column) => cellToPoint(cellAt(grid, row, column)));
  const band = (values: Cell[] | undefined): Point[] => {
    const byRound = new Map(bands?.rounds.map((round, index) => [round, values?.[index] ?? null]));
    return grid.rounds.map((round) => cellToPoint(byRound.get(round) ?? null));
  };
  const row = grid.nodes.indexOf(selected);
  return [
    grid.rounds,
    ...Array.from({ length: lineCount }, (_, index) => line(index)),
    band(bands?.high),
    band(bands?.low),
    band(bands?.mean),
    row < 0 ? grid.rounds.map(() => undefined) : line(row),
  ] as uPlot.AlignedData;
}

/** Return the points of any client that diverged, and the mean and highlighted lines, which lead to their marks. */
function divergedOf(data: uPlot.AlignedData): Lines {
  const x = data[0] as number[];
  const all = data.slice(1) as Point[][];
  const diverged = x.map((_, index) => index).filter((index) => all.some((line) => line[index] === null));
  return { x, y: all.slice(-2), diverged };
}

interface OptionParams {
  metric: string;
  unit: Unit;
  lineCount: number;
  isSelected: boolean;
  zoom: ZoomRef;
  marks: () => Lines;
  format: (value: number) => string;
  onPointClick: OnPointClick;
}

function plotOptions(tokens: Tokens, { metric, unit, lineCount, isSelected, zoom, marks, format, onPointClick }: OptionParams): PlotOptions {
  const [first = tokens.ink2, second = tokens.ink2] = tokens.series;
  const faint: uPlot.Series = { stroke: tokens.ink3, width: 1, alpha: isSelected ? 0.12 : 0.3, points: { show: false } };
  const strong = (stroke: string): uPlot.Series => ({
    stroke,
    width: 2,
    points: { show: (plot) => plot.data[0].length <= 2, size: 5 },
  });
  return {
    hasCursorPoints: false,
    plugins: [divergedPlugin(marks, [first, second], tokens, "top"), clickPlugin(onPointClick)],
    padding: [14, 18, 0, 0],
    scales: {
      x: xScale(zoom),
      y: { range: (_, low, high) => (low === null || high === null ? [0, 1] : padded(low, high)) },
    },
    axes: [xAxis("round", unit, tokens), { ...yAxis(reportChartTitle(metric), tokens, format), size: 62 }],
    series: [{}, ...Array.from({ length: lineCount }, () => faint), BAND_EDGE, BAND_EDGE, strong(first), strong(second)],
    bands: [{ series: [lineCount + 1, lineCount + 2], fill: `${first}33` }],
  };
}

const padded = (low: number, high: number): [number, number] =>
  high > low ? [low - (high - low) * 0.05, high + (high - low) * 0.12] : [low - 0.5, high + 0.5];

interface BandTableProps {
  grid: Grid;
  bands: Bands | undefined;
  metric: string;
  unit: Unit;
}

function BandTable({ grid, bands, metric, unit }: BandTableProps) {
  const column = (title: string, values: Cell[] | undefined): Column<number> => ({
    title,
    numeric: true,
    cell: (index) => formatReportMetric(metric, values?.[index]),
  });
  const columns: Column<number>[] = [
    { title: capitalize(unit), numeric: true, cell: (index) => formatCount(grid.rounds[index] ?? 0) },
    column("10 %", bands?.low),
    column("Mean", bands?.mean),
    column("90 %", bands?.high),
  ];
  return <Table columns={columns} rows={grid.rounds.map((_, index) => index).reverse()} rowKey={(index) => index} />;
}
