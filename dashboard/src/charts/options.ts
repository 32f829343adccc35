/** What all plots share: quiet axes, a pointer that a page's charts follow, and a zoom that new data don't undo. */
import uPlot from "uplot";
import { TIME_STEPS, tick, type Axis } from "./axis";
import type { Tokens } from "./tokens";

export interface Zoom {
  current: { min: number; max: number } | null;
}

export function xAxis(axis: Axis, tokens: Tokens): uPlot.Axis {
  return {
    ...quiet(tokens),
    grid: { show: false },
    size: 28,
    space: axis === "round" ? 48 : 72,
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

function quiet(tokens: Tokens): uPlot.Axis {
  return { stroke: tokens.ink3, font: tokens.font, ticks: { show: false }, border: { show: false }, gap: 6 };
}

/** `pad` widens the range at both ends, in the axis's unit. */
export function xScale(zoom: Zoom, pad = 0): uPlot.Scale {
  return {
    time: false,
    range: (_, low, high) => {
      if (zoom.current !== null) return [zoom.current.min, zoom.current.max];
      if (low === null || high === null) return [0, 1];
      return high - pad > low + pad ? [low - pad, high + pad] : [low - Math.max(pad, 0.5), low + Math.max(pad, 0.5)];
    },
  };
}

/** Dragging zooms, a double click shows everything again; `changed` tells whether the plot is zoomed. */
export function zoomHooks(zoom: Zoom, sync: string, changed: (zoomed: boolean) => void): uPlot.Plugin {
  return {
    hooks: {
      setSelect: (plot) => {
        if (plot.select.width < 4) return;
        const min = plot.posToVal(plot.select.left, "x");
        zoom.current = { min, max: plot.posToVal(plot.select.left + plot.select.width, "x") };
        changed(true);
      },
      ready: (plot) => {
        plot.over.addEventListener("dblclick", () => {
          resetZoom(zoom, sync);
          changed(false);
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
