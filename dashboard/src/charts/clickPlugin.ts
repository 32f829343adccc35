import type uPlot from "uplot";

/** A click at a greater distance from all lines selects none of them (px). */
const CLICK_RADIUS_PX = 28;

/** `index`: of the point; `value`: at the pointer; `radius`: the greatest distance of a line that is selected, as a value. */
export type OnPointClick = (index: number, value: number, radius: number) => void;

/** Report clicks on a plot, but not drags. */
export function clickPlugin(onPointClick: OnPointClick): uPlot.Plugin {
  return {
    hooks: {
      ready: (plot) => {
        let downX = 0;
        plot.over.addEventListener("mousedown", (event) => (downX = event.clientX));
        plot.over.addEventListener("click", (event) => {
          const { idx, top } = plot.cursor;
          if (idx === null || idx === undefined || top === undefined || Math.abs(event.clientX - downX) > 3) return;
          const value = plot.posToVal(top, "y");
          onPointClick(idx, value, Math.abs(plot.posToVal(top + CLICK_RADIUS_PX, "y") - value));
        });
      },
    },
  };
}
