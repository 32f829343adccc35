/** A click on a plot that was no drag. */
import type uPlot from "uplot";

/** A click further away from every line than this means none of them (px). */
const REACH = 28;

/** Which point of the data, which value, and how far from it a line may be to be meant. */
export type Pick = (index: number, value: number, reach: number) => void;

export function picking(onPick: Pick): uPlot.Plugin {
  return {
    hooks: {
      ready: (plot) => {
        let down = 0;
        plot.over.addEventListener("mousedown", (event) => (down = event.clientX));
        plot.over.addEventListener("click", (event) => {
          const { idx, top } = plot.cursor;
          if (idx === null || idx === undefined || top === undefined || Math.abs(event.clientX - down) > 3) return;
          const value = plot.posToVal(top, "y");
          onPick(idx, value, Math.abs(plot.posToVal(top + REACH, "y") - value));
        });
      },
    },
  };
}
