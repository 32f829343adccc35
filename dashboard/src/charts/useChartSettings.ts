/** The settings of a page's charts, all of which are in the address. */
import { useMemo } from "react";
import { useChoiceParam } from "../router/router";
import { RUN_AXES, type Axis } from "./axis";
import { SMOOTHINGS, type Smoothing } from "./smoothing";

export interface ChartSettings<A extends Axis = Axis> {
  axis: A;
  logX: boolean;
  logY: boolean;
  smoothing: Smoothing;
}

const SCALES = ["linear", "log"] as const;

/** Return the settings and the functions that change them. */
export function useChartSettings<A extends Axis = Axis>(axes: readonly [A, ...A[]] = RUN_AXES as unknown as readonly [A, ...A[]]) {
  const [axis, setAxis] = useChoiceParam("x", axes);
  const [xScale, setXScale] = useChoiceParam("xscale", SCALES);
  const [yScale, setYScale] = useChoiceParam("yscale", SCALES);
  const [smoothing, setSmoothing] = useChoiceParam("smooth", SMOOTHINGS);
  const logX = xScale === "log" && axis !== "clock"; // the time of day has no zero
  const logY = yScale === "log";
  const settings = useMemo<ChartSettings<A>>(() => ({ axis, logX, logY, smoothing }), [axis, logX, logY, smoothing]);
  return {
    settings,
    setAxis,
    setLogX: (on: boolean) => setXScale(on ? "log" : "linear"),
    setLogY: (on: boolean) => setYScale(on ? "log" : "linear"),
    setSmoothing,
  };
}
