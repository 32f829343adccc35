/** How a page's charts are looked at: every part of it is in the address. */
import { useCallback, useMemo } from "react";
import { replaceParam, useChoice, useParam } from "../router";
import { RUN_AXES, type Axis } from "./axis";
import type { Range } from "./options";
import { SMOOTHINGS, type Smoothing } from "./smooth";

export interface Look {
  axis: Axis;
  logX: boolean;
  logY: boolean;
  smoothing: Smoothing;
}

const SCALES = ["linear", "log"] as const;

/** The look, how to change a part of it, and the zoom that the address began with. */
export function useLook() {
  const [axis, setAxis] = useChoice("x", RUN_AXES);
  const [xScale, setXScale] = useChoice("xscale", SCALES);
  const [yScale, setYScale] = useChoice("yscale", SCALES);
  const [smoothing, setSmoothing] = useChoice("smooth", SMOOTHINGS);
  const logX = xScale === "log" && axis !== "clock"; // times of day have no zero to count from
  const logY = yScale === "log";
  const look = useMemo<Look>(() => ({ axis, logX, logY, smoothing }), [axis, logX, logY, smoothing]);
  return {
    look,
    setAxis,
    setLogX: (on: boolean) => setXScale(on ? "log" : "linear"),
    setLogY: (on: boolean) => setYScale(on ? "log" : "linear"),
    setSmoothing,
    zoom: parseZoom(useParam("zoom")),
    setZoom: useCallback((range: Range | null) => replaceParam("zoom", range === null ? "" : writeZoom(range)), []),
  };
}

/** "12_40": from where to where, in the axis's unit; a millionth of the width is exact enough. */
export function writeZoom({ min, max }: Range): string {
  const digits = Math.max(0, 6 - Math.floor(Math.log10(max - min)));
  return [min, max].map((value) => Number(value.toFixed(Math.min(12, digits)))).join("_");
}

/** Null for what is no range. */
export function parseZoom(text: string): Range | null {
  const [min, max, ...more] = text.split("_").map((part) => (part === "" ? NaN : Number(part)));
  if (min === undefined || max === undefined || more.length > 0) return null;
  return Number.isFinite(min) && Number.isFinite(max) && min < max ? { min, max } : null;
}
