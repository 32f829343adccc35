import type uPlot from "uplot";
import { colourOf, isWhileTraining, type What } from "../format/metric";
import { percent } from "../format/number";
import { shortFigure, type Axis } from "./axis";
import { divergedMarks } from "./diverged";
import { pointer, xAxis, xScale, yAxis, zoomHooks, type Zoom } from "./options";
import { accuracyRange, lossRange, type Lines } from "./series";
import type { Tokens } from "./tokens";

export interface LineSettings {
  what: What;
  names: string[];
  axis: Axis;
  tokens: Tokens;
  zoom: Zoom;
  /** The data that are drawn or about to be. */
  lines: () => Lines;
  onZoom: (zoomed: boolean) => void;
  onPoint: (index: number | null) => void;
}

/** All metric charts of a page share this pointer. */
export const SYNC = "metrics";

export function lineOptions(settings: LineSettings, width: number, height: number): uPlot.Options {
  const { what, names, axis, tokens, zoom, lines } = settings;
  const { cursor, plugin } = pointer(tokens, SYNC, settings.onPoint);
  const strokes = names.map((name) => tokens.series[colourOf(name)] ?? tokens.ink2);
  const edge = what === "loss" ? "top" : "bottom";
  const range = (_: uPlot, low: number | null, high: number | null) =>
    what === "accuracy" ? accuracyRange(low, high) : lossRange(low, high, lines().diverged.length > 0);
  return {
    width,
    height,
    cursor,
    plugins: [plugin, zoomHooks(zoom, SYNC, settings.onZoom), divergedMarks(lines, strokes, tokens, edge)],
    legend: { show: false },
    padding: [10, 18, 0, 0],
    scales: { x: xScale(zoom), y: { range } },
    axes: [xAxis(axis, tokens), yAxis(tokens, what === "accuracy" ? (value) => percent(value, 0) : shortFigure)],
    series: [{}, ...names.map((name, index) => series(name, strokes[index]))],
  };
}

function series(name: string, stroke: string | undefined): uPlot.Series {
  return {
    label: name,
    stroke,
    width: colourOf(name) === 0 ? 2 : 1.5,
    // What was measured while training is a hint, not a result.
    dash: isWhileTraining(name) ? [4, 4] : undefined,
    // A line needs two points to be seen; uPlot asks at every redraw.
    points: { show: (plot) => plot.data[0].length <= 2, size: 5 },
  };
}
