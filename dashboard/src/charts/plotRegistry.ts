/** The plots by their elements. */
import type uPlot from "uplot";

const plots = new WeakMap<Element, uPlot>();

export const registerPlot = (plot: uPlot): void => void plots.set(plot.root, plot);

/** Return the plot inside an element, if there is one. */
export function findPlot(element: Element): uPlot | undefined {
  const root = element.querySelector(".uplot");
  return root === null ? undefined : plots.get(root);
}
