/** Options that all plots share: axes, scales, the pointer that charts of a page share, and a zoom that new data keep. */
import uPlot from "uplot";
import { capitalize } from "../format/text";
import { formatClockTick, formatTick, TIME_STEPS, type Axis } from "./axis";
import type { Tokens } from "./tokens";
import { xExtent } from "./xExtent";

export interface Range {
  min: number;
  max: number;
}

/** The range that a chart shows; null: everything. Plots read it while they draw. */
export interface ZoomRef {
  current: Range | null;
}

/** Space for the label of an axis (px). */
export const LABEL_PX = 16;

const ROUND_STEPS = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10_000];

/** `label` names the axis. */
export function xAxis(axis: Axis, label: string, tokens: Tokens, log = false): uPlot.Axis {
  const style = { ...axisStyle(label, tokens), grid: { show: false }, size: 28, space: axis === "round" ? 48 : 72 };
  if (axis === "clock") {
    return { ...style, values: (_, splits, _axis, _space, step) => splits.map((at) => formatClockTick(at, step)) };
  }
  if (log) {
    return { ...style, values: (_, splits) => splits.map((value) => (isPowerOfTen(value) ? formatTick(value, axis) : "")) };
  }
  return {
    ...style,
    values: (_, splits) => splits.map((value) => formatTick(value, axis)),
    ...(axis === "time" ? { incrs: TIME_STEPS } : {}),
    ...(axis === "round" ? { incrs: ROUND_STEPS } : {}),
  };
}

/** `label` names the axis, with its unit if the ticks have none. */
export function yAxis(label: string, tokens: Tokens, format: (value: number) => string): uPlot.Axis {
  return {
    ...axisStyle(label, tokens),
    grid: { stroke: tokens.line, width: 1 },
    size: 48,
    space: 36,
    values: (_, splits) => splits.map(format),
  };
}

const isPowerOfTen = (value: number | null): value is number => value !== null && Math.abs(Math.log10(value) % 1) < 1e-9;

/** Return labels of a logarithmic axis: its powers of ten, or every tick if there are fewer than two of them. */
export function logTickLabels(format: (value: number) => string): uPlot.Axis.Values {
  return (_, splits) => {
    const powers = splits.filter(isPowerOfTen).length;
    return splits.map((value) => (value !== null && (powers < 2 || isPowerOfTen(value)) ? format(value) : ""));
  };
}

function axisStyle(label: string, tokens: Tokens): uPlot.Axis {
  const named = { label: capitalize(label), labelSize: LABEL_PX, labelGap: 0, labelFont: tokens.font };
  return { ...named, stroke: tokens.ink3, font: tokens.font, ticks: { show: false }, border: { show: false }, gap: 6 };
}

/** `pad` extends the range at both ends, in the axis's unit; the range starts at `from` at the latest. */
export function xScale(zoom: ZoomRef, pad = 0, kind: "linear" | "log" | "clock" = "linear", from = Infinity): uPlot.Scale {
  return {
    time: kind === "clock",
    ...(kind === "log" ? { distr: 3 as const, log: 10 as const } : {}),
    range: (plot, min, max) => {
      if (zoom.current !== null) return [zoom.current.min, zoom.current.max];
      if (min === null || max === null) return kind === "log" ? [1, 10] : [0, 1];
      const [first, high] = xExtent(plot.data[0], min, max);
      const low = Math.min(first, from);
      if (kind === "log") return logExtent(plot.data[0], high);
      return high > low ? [low - pad, high + pad] : [low - Math.max(pad, 0.5), low + Math.max(pad, 0.5)];
    },
  };
}

/** Return the range from the first positive value, because a logarithmic axis has no place for zero. */
function logExtent(x: ArrayLike<number>, high: number): [number, number] {
  const low = Array.from(x).find((at) => at > 0);
  return low === undefined ? [1, 10] : high > low ? [low, high] : [low / 2, low * 2];
}

/** Dragging zooms, a double click resets the zoom. `onChange` gets the range that is shown; null: everything. */
export function zoomPlugin(zoom: ZoomRef, sync: string, onChange: (range: Range | null) => void): uPlot.Plugin {
  return {
    hooks: {
      setSelect: (plot) => {
        if (plot.select.width < 4) return;
        const min = plot.posToVal(plot.select.left, "x");
        zoom.current = { min, max: plot.posToVal(plot.select.left + plot.select.width, "x") };
        onChange(zoom.current);
      },
      ready: (plot) => {
        plot.over.addEventListener("dblclick", () => {
          resetZoom(zoom, sync);
          onChange(null);
        });
      },
    },
  };
}

/** Show everything in all charts that share the pointer. */
export function resetZoom(zoom: ZoomRef, sync: string): void {
  zoom.current = null;
  for (const plot of uPlot.sync(sync).plots) plot.setData(plot.data);
}

export function cursorOptions(tokens: Tokens, sync: string, hasPoints: boolean): uPlot.Cursor {
  return {
    y: false,
    drag: { x: true, y: false, setScale: true },
    points: hasPoints ? { size: 7, width: 2, fill: tokens.surface } : { show: false },
    sync: { key: sync, setSeries: false },
  };
}

/** Report the index of the point under the pointer; null if there is none. */
export function cursorPlugin(onMove: (index: number | null) => void): uPlot.Plugin {
  return { hooks: { setCursor: (plot) => onMove(plot.cursor.idx ?? null) } };
}
