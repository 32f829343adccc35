import { useLayoutEffect, useRef, useState, type ReactNode, type RefObject } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { cursorOptions, cursorPlugin, zoomPlugin } from "./plotOptions";
import { registerPlot } from "./plotRegistry";
import { useTokens, type Tokens } from "./tokens";
import type { ChartZoom } from "./useZoom";

/** Options of one chart, in addition to those that all charts share. */
export interface PlotOptions extends Pick<uPlot.Options, "scales" | "axes" | "series" | "bands"> {
  plugins?: uPlot.Plugin[];
  padding?: uPlot.Padding;
  /** True if the pointer marks the nearest points of the lines. */
  hasCursorPoints?: boolean;
}

interface Spec {
  data: uPlot.AlignedData;
  /** px */
  height: number;
  /** Charts with the same key share the pointer. */
  sync: string;
  zoom: Pick<ChartZoom, "zoom" | "setRange">;
  /** Called again when the theme or one of `deps` changes. Values that it reads later must be in refs (`useLatest`). */
  options: (tokens: Tokens) => PlotOptions;
}

interface Chart {
  /** The element in which the chart is drawn. */
  plot: ReactNode;
  /** The index of the point under the pointer; null if there is none. */
  pointed: number | null;
}

/** Draw a chart: create its plot when its element is mounted, resize it with the element, and destroy it. */
export function useChart({ data, height, sync, zoom: { zoom, setRange }, options }: Spec, deps: readonly unknown[]): Chart {
  const tokens = useTokens();
  const [element, setElement] = useState<HTMLDivElement | null>(null);
  const [pointed, setPointed] = useState<number | null>(null);
  const plot = useRef<uPlot>(null);
  const drawn = useRef(data);

  useLayoutEffect(() => {
    if (element === null) return;
    const { plugins = [], padding = [10, 18, 0, 0], hasCursorPoints = true, ...own } = options(tokens);
    const width = element.clientWidth;
    const cursor = cursorOptions(tokens, sync, hasCursorPoints);
    const shared = [cursorPlugin(setPointed), zoomPlugin(zoom, sync, setRange)];
    const settings: uPlot.Options = { ...own, width, height, cursor, padding, plugins: [...shared, ...plugins], legend: { show: false } };
    const created = new uPlot(settings, drawn.current, element);
    plot.current = created;
    registerPlot(created);
    const observer = new ResizeObserver(() => {
      if (element.clientWidth !== created.width) created.setSize({ width: element.clientWidth, height });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      created.destroy();
      plot.current = null;
    };
    // `options` is a new function at every render: `deps` are the values on which it depends.
  }, [element, tokens, height, sync, zoom, setRange, ...deps]);

  // Before the next frame, so that the text beside the plot is never newer than the plot.
  useLayoutEffect(() => {
    if (drawn.current === data) return;
    drawn.current = data;
    plot.current?.setData(data);
  }, [data]);

  return { plot: <div ref={setElement} className="plot" />, pointed };
}

/**
 * Return a ref to the value of the latest render, for callbacks of the plot. It is set during the render, because the plot
 * asks for marks and ranges of the data that it is about to get.
 */
export function useLatest<T>(value: T): RefObject<T> {
  const latest = useRef(value);
  latest.current = value;
  return latest;
}
