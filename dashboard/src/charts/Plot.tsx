import { useLayoutEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { remember } from "./plots";

export type MakeOptions = (width: number, height: number) => uPlot.Options;

interface Props {
  /** Memoised: a new function makes a new plot. */
  make: MakeOptions;
  data: uPlot.AlignedData;
  height: number;
}

/** One uPlot, kept at the width of its place; new data are set, not redrawn from nothing. */
export function Plot({ make, data, height }: Props) {
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const shown = useRef(data);

  useLayoutEffect(() => {
    const place = host.current;
    if (place === null) return;
    const made = new uPlot(make(place.clientWidth, height), shown.current, place);
    plot.current = made;
    remember(made);
    const observer = new ResizeObserver(() => {
      if (place.clientWidth !== made.width) made.setSize({ width: place.clientWidth, height });
    });
    observer.observe(place);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [make, height]);

  // Before the next frame, so that the words beside the plot never run ahead of it.
  useLayoutEffect(() => {
    if (shown.current === data) return;
    shown.current = data;
    plot.current?.setData(data);
  }, [data]);

  return <div ref={host} className="plot" />;
}
