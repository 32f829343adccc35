/** Which plot is drawn in which element of the page. */
import type uPlot from "uplot";

const plots = new WeakMap<Element, uPlot>();

export const remember = (plot: uPlot): void => void plots.set(plot.root, plot);

/** The plot within an element, if there is one. */
export function plotIn(element: Element): uPlot | undefined {
  const root = element.querySelector(".uplot");
  return root === null ? undefined : plots.get(root);
}
