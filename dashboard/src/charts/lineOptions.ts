import type uPlot from "uplot";
import { clientMetric, metricTitle, isNodeEvaluation, isTrainingMetric, seriesIndex } from "../domain/metrics";
import type { Unit } from "../domain/unit";
import { axisTitle, shortFigure, shortPercent } from "./axis";
import { clickPlugin, type OnPointClick } from "./clickPlugin";
import { divergedPlugin } from "./divergedPlugin";
import { logTickLabels, xAxis, xScale, yAxis, type ZoomRef } from "./plotOptions";
import { accuracyRange, logRange, lossRange, type Lines } from "./series";
import { stagePlugin } from "./stagePlugin";
import type { Tokens } from "./tokens";
import type { PlotOptions } from "./useChart";
import type { ChartSettings } from "./useChartSettings";

/** All metric charts of a page share the pointer. */
export const METRICS_SYNC = "metrics";

interface Params {
  /** The kind of metric, such as "accuracy". */
  kind: string;
  names: string[];
  unit: Unit;
  settings: ChartSettings;
  zoom: ZoomRef;
  /** Return the lines that are drawn or about to be drawn. */
  lines: () => Lines;
  onPointClick: OnPointClick;
}

/** Options of a chart of one kind of metric over a run. */
export function lineOptions({ kind, names, unit, settings, zoom, lines, onPointClick }: Params, tokens: Tokens): PlotOptions {
  const { axis, logX, smoothing } = settings;
  const strokes = names.map((name) => tokens.series[seriesIndex(name)] ?? tokens.ink2);
  const isSmoothed = smoothing !== "none";
  const lineCount = names.length * (isSmoothed ? 2 : 1);
  const bandColor = strokes[names.indexOf(clientMetric(names) ?? "")] ?? tokens.series[0];
  const edge = kind === "loss" ? "top" : "bottom";
  return {
    plugins: [divergedPlugin(lines, [...strokes, tokens.ink], tokens, edge), stagePlugin(lines, tokens), clickPlugin(onPointClick)],
    scales: {
      // Bytes and time count from the start of the job, not from the first version that was evaluated.
      x: xScale(zoom, 0, axis === "clock" ? "clock" : logX ? "log" : "linear", axis === "bytes" || axis === "time" ? 0 : Infinity),
      y: metricScale(kind, settings, () => lines().diverged.length > 0),
    },
    axes: [xAxis(axis, axisTitle(axis, unit), tokens, logX), metricAxis(kind, names, settings, tokens)],
    series: [
      {},
      ...names.map((name, index) => (isSmoothed ? rawSeries(name, strokes[index]) : metricSeries(name, strokes[index], lines))),
      ...(isSmoothed ? names.map((name, index) => metricSeries(name, strokes[index])) : []),
      BAND_EDGE,
      BAND_EDGE,
      highlightedSeries(tokens),
    ],
    bands: [{ series: [lineCount + 1, lineCount + 2], fill: `${bandColor}2b` }],
  };
}

/** Return the y scale of a metric; `hasMarks`: whether marks of diverged points need space at the edge. */
export function metricScale(kind: string, { logY }: ChartSettings, hasMarks: () => boolean): uPlot.Scale {
  return {
    range: (_, low, high) => {
      if (logY) return logRange(low, high, hasMarks() && kind === "loss");
      return kind === "accuracy" ? accuracyRange(low, high) : lossRange(low, high, hasMarks());
    },
    ...(logY ? { distr: 3, log: 10 } : {}),
  };
}

export function metricAxis(kind: string, names: string[], { logY }: ChartSettings, tokens: Tokens): uPlot.Axis {
  const format = kind === "accuracy" ? shortPercent : shortFigure;
  const axis = yAxis(metricTitle(kind, names), tokens, format);
  return logY ? { ...axis, values: logTickLabels(format) } : axis;
}

/** An edge of the band of clients; only the area between the edges is visible. */
export const BAND_EDGE: uPlot.Series = { stroke: "transparent", width: 0, points: { show: false } };

const highlightedSeries = (tokens: Tokens): uPlot.Series => ({
  stroke: tokens.ink,
  width: 1.75,
  points: { show: (plot) => plot.data[0].length <= 2, size: 5 },
});

/** The measured values behind a smoothed line. */
const rawSeries = (name: string, stroke: string | undefined): uPlot.Series => ({
  ...metricSeries(name, stroke),
  width: 1,
  alpha: 0.35,
});

/** `lines`: evaluations of provisional versions get hollow points. */
function metricSeries(name: string, stroke: string | undefined, lines?: () => Lines): uPlot.Series {
  const provisional = () => (lines !== undefined && isNodeEvaluation(name) ? (lines().provisional ?? []) : []);
  const isShort = (plot: uPlot) => plot.data[0].length <= 2;
  return {
    label: name,
    stroke,
    width: seriesIndex(name) === 0 ? 2 : 1.5,
    // Metrics of the training are a hint, not a result.
    dash: isTrainingMetric(name) ? [4, 4] : undefined,
    // A line is visible only from two points on; uPlot asks at every redraw.
    points: {
      show: (plot) => isShort(plot) || provisional().length > 0,
      filter: (plot) => (isShort(plot) ? null : provisional()),
      size: 6,
    },
  };
}
