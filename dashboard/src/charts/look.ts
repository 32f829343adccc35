/** How a page's charts are looked at: every part of it is in the address. */
import { useMemo } from "react";
import { useChoice } from "../router";
import { RUN_AXES, type Axis } from "./axis";
import { SMOOTHINGS, type Smoothing } from "./smooth";

export interface Look<A extends Axis = Axis> {
  axis: A;
  logX: boolean;
  logY: boolean;
  smoothing: Smoothing;
}

const SCALES = ["linear", "log"] as const;

/** The look, and how to change a part of it. */
export function useLook<A extends Axis = Axis>(axes: readonly [A, ...A[]] = RUN_AXES as unknown as readonly [A, ...A[]]) {
  const [axis, setAxis] = useChoice("x", axes);
  const [xScale, setXScale] = useChoice("xscale", SCALES);
  const [yScale, setYScale] = useChoice("yscale", SCALES);
  const [smoothing, setSmoothing] = useChoice("smooth", SMOOTHINGS);
  const logX = xScale === "log" && axis !== "clock"; // times of day have no zero to count from
  const logY = yScale === "log";
  const look = useMemo<Look<A>>(() => ({ axis, logX, logY, smoothing }), [axis, logX, logY, smoothing]);
  return {
    look,
    setAxis,
    setLogX: (on: boolean) => setXScale(on ? "log" : "linear"),
    setLogY: (on: boolean) => setYScale(on ? "log" : "linear"),
    setSmoothing,
  };
}
