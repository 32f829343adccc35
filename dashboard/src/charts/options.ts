/** What all plots share: quiet axes, a pointer that a page's charts follow, and a zoom that new data don't undo. */
import uPlot from "uplot";
import { clockTick, TIME_STEPS, tick, type Axis } from "./axis";
import { spanOf } from "./single";
import type { Tokens } from "./tokens";

export interface Range {
  min: number;
  max: number;
}

export interface Zoom {
  current: Range | null;
}

export function xAxis(axis: Axis, tokens: Tokens, log = false): uPlot.Axis {
  const look = { ...quiet(tokens), grid: { show: false }, size: 28, space: axis === "round" ? 48 : 72 };
  if (axis === "clock") {
    return { ...look, values: (_, splits, _axis, _space, step) => splits.map((at) => clockTick(at, step)) };
  }
  if (log) return { ...look, values: (_, splits) => splits.map((value) => (isTen(value) ? tick(value, axis) : "")) };
  return {
    ...look,
    values: (_, splits) => splits.map((value) => tick(value, axis)),
    ...(axis === "time" ? { incrs: TIME_STEPS } : {}),
    ...(axis === "round" ? { incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10_000] } : {}),
  };
}

export function yAxis(tokens: Tokens, write: (value: number) => string): uPlot.Axis {
  return {
    ...quiet(tokens),
    grid: { stroke: tokens.line, width: 1 },
    size: 48,
    space: 36,
    values: (_, splits) => splits.map(write),
  };
}

/** Of a logarithmic axis only the powers of ten are named. */
const isTen = (value: number | null): value is number => value !== null && Math.abs(Math.log10(value) % 1) < 1e-9;

/** A logarithmic axis names its powers of ten; within less than two of them, every tick. */
export function logValues(write: (value: number) => string): uPlot.Axis.Values {
  return (_, splits) => {
    const tens = splits.filter(isTen).length;
    return splits.map((value) => (value !== null && (tens < 2 || isTen(value)) ? write(value) : ""));
  };
}

function quiet(tokens: Tokens): uPlot.Axis {
  return { stroke: tokens.ink3, font: tokens.font, ticks: { show: false }, border: { show: false }, gap: 6 };
}

/** `pad` widens the range at both ends, in the axis's unit; `from`: where it begins at the latest. */
export function xScale(zoom: Zoom, pad = 0, kind: "linear" | "log" | "clock" = "linear", from = Infinity): uPlot.Scale {
  return {
    time: kind === "clock",
    ...(kind === "log" ? { distr: 3 as const, log: 10 as const } : {}),
    range: (plot, least, most) => {
      if (zoom.current !== null) return [zoom.current.min, zoom.current.max];
      if (least === null || most === null) return kind === "log" ? [1, 10] : [0, 1];
      const [begin, high] = spanOf(plot.data[0], least, most);
      const low = Math.min(begin, from);
      if (kind === "log") return logSpan(plot.data[0], high);
      return high - pad > low + pad ? [low - pad, high + pad] : [low - Math.max(pad, 0.5), low + Math.max(pad, 0.5)];
    },
  };
}

/** From the first place that a logarithmic axis has: round 0 and the moment of the start have none. */
function logSpan(x: ArrayLike<number>, high: number): [number, number] {
  const low = Array.from(x).find((at) => at > 0);
  return low === undefined ? [1, 10] : high > low ? [low, high] : [low / 2, low * 2];
}

/** Dragging zooms, a double click shows everything again; `changed` is told what is shown: null is everything. */
export function zoomHooks(zoom: Zoom, sync: string, changed: (range: Range | null) => void): uPlot.Plugin {
  return {
    hooks: {
      setSelect: (plot) => {
        if (plot.select.width < 4) return;
        const min = plot.posToVal(plot.select.left, "x");
        zoom.current = { min, max: plot.posToVal(plot.select.left + plot.select.width, "x") };
        changed(zoom.current);
      },
      ready: (plot) => {
        plot.over.addEventListener("dblclick", () => {
          resetZoom(zoom, sync);
          changed(null);
        });
      },
    },
  };
}

/** Shows everything again in all charts that share the pointer. */
export function resetZoom(zoom: Zoom, sync: string): void {
  zoom.current = null;
  for (const plot of uPlot.sync(sync).plots) plot.setData(plot.data);
}

export function pointer(tokens: Tokens, sync: string, moved: (index: number | null) => void) {
  const cursor: uPlot.Cursor = {
    y: false,
    drag: { x: true, y: false, setScale: true },
    points: { size: 7, width: 2, fill: tokens.surface },
    sync: { key: sync, setSeries: false },
  };
  const plugin: uPlot.Plugin = { hooks: { setCursor: (plot) => moved(plot.cursor.idx ?? null) } };
  return { cursor, plugin };
}
