import type uPlot from "uplot";
import { clientMetric } from "../clients/spread";
import { colourOf, isMeasuredByNodes, isWhileTraining } from "../format/metric";
import { shortFigure, shortPercent } from "./axis";
import { divergedMarks } from "./diverged";
import type { Look } from "./look";
import { logValues, pointer, xAxis, xScale, yAxis, zoomHooks, type Range, type Zoom } from "./options";
import { picking, type Pick } from "./picking";
import { accuracyRange, logRange, lossRange, type Lines } from "./series";
import type { Tokens } from "./tokens";

export interface LineSettings {
  what: string;
  names: string[];
  look: Look;
  tokens: Tokens;
  zoom: Zoom;
  /** The data that are drawn or about to be. */
  lines: () => Lines;
  onZoom: (range: Range | null) => void;
  onPoint: (index: number | null) => void;
  onPick: Pick;
}

/** All metric charts of a page share this pointer. */
export const SYNC = "metrics";

export function lineOptions(settings: LineSettings, width: number, height: number): uPlot.Options {
  const { what, names, look, tokens, zoom, lines } = settings;
  const { axis, logX, logY } = look;
  const { cursor, plugin } = pointer(tokens, SYNC, settings.onPoint);
  const strokes = names.map((name) => tokens.series[colourOf(name)] ?? tokens.ink2);
  const side = what === "loss" ? "top" : "bottom";
  const write = what === "accuracy" ? shortPercent : shortFigure;
  const range = (_: uPlot, low: number | null, high: number | null): uPlot.Range.MinMax => {
    const marked = lines().diverged.length > 0;
    if (logY) return logRange(low, high, marked && what === "loss");
    return what === "accuracy" ? accuracyRange(low, high) : lossRange(low, high, marked);
  };
  const y = yAxis(tokens, write);
  const smoothed = look.smoothing !== "none";
  const drawn = names.length * (smoothed ? 2 : 1);
  const banded = strokes[names.indexOf(clientMetric(names) ?? "")] ?? tokens.series[0];
  return {
    width,
    height,
    cursor,
    plugins: [plugin, zoomHooks(zoom, SYNC, settings.onZoom), divergedMarks(lines, [...strokes, tokens.ink], tokens, side), picking(settings.onPick)],
    legend: { show: false },
    padding: [10, 18, 0, 0],
    scales: {
      // What was spent counts from the job's start, not from the first version that was measured.
      x: xScale(zoom, 0, axis === "clock" ? "clock" : logX ? "log" : "linear", axis === "bytes" || axis === "time" ? 0 : Infinity),
      y: { range, ...(logY ? { distr: 3, log: 10 } : {}) },
    },
    axes: [xAxis(axis, tokens, logX), logY ? { ...y, values: logValues(write) } : y],
    series: [
      {},
      ...names.map((name, index) => (smoothed ? raw(name, strokes[index]) : series(name, strokes[index], lines))),
      ...(smoothed ? names.map((name, index) => series(name, strokes[index])) : []),
      EDGE,
      EDGE,
      alone(tokens),
    ],
    bands: [{ series: [drawn + 1, drawn + 2], fill: `${banded}2b` }],
  };
}

/** Of the band of clients: only what lies between its edges is seen. */
const EDGE: uPlot.Series = { stroke: "transparent", width: 0, points: { show: false } };

/** The client that stands out. */
const alone = (tokens: Tokens): uPlot.Series => ({
  stroke: tokens.ink,
  width: 1.75,
  points: { show: (plot) => plot.data[0].length <= 2, size: 5 },
});

/** What was measured, behind its smoothed line. */
const raw = (name: string, stroke: string | undefined): uPlot.Series => ({
  ...series(name, stroke),
  width: 1,
  alpha: 0.35,
});

/** `lines`: where a version is provisional, what nodes measured of it has a hollow point. */
function series(name: string, stroke: string | undefined, lines?: () => Lines): uPlot.Series {
  const hollow = () => (lines !== undefined && isMeasuredByNodes(name) ? (lines().provisional ?? []) : []);
  const single = (plot: uPlot) => plot.data[0].length <= 2;
  return {
    label: name,
    stroke,
    width: colourOf(name) === 0 ? 2 : 1.5,
    // What was measured while training is a hint, not a result.
    dash: isWhileTraining(name) ? [4, 4] : undefined,
    // A line needs two points to be seen; uPlot asks at every redraw.
    points: {
      show: (plot) => single(plot) || hollow().length > 0,
      filter: (plot) => (single(plot) ? null : hollow()),
      size: 6,
    },
  };
}
