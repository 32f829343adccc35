/** A zoom that is part of the address, for all charts that share a pointer. */
import { useCallback, useMemo, useState } from "react";
import { replaceParam, useParam } from "../router/router";
import { resetZoom, type Range, type ZoomRef } from "./plotOptions";

export interface ChartZoom {
  /** The range that plots read while they draw. */
  zoom: ZoomRef;
  /** The range in the address; null: everything is shown. */
  range: Range | null;
  /** Store the range that charts show in the address. */
  setRange: (range: Range | null) => void;
  /** Show everything. */
  reset: () => void;
}

/** `name`: parameter in the address; `sync`: key of the pointer that the charts share. */
export function useZoom(name: string, sync: string): ChartZoom {
  const param = useParam(name);
  const range = useMemo(() => parseZoom(param), [param]);
  const [zoom] = useState<ZoomRef>(() => ({ current: range }));
  const setRange = useCallback((next: Range | null) => replaceParam(name, next === null ? "" : formatZoom(next)), [name]);
  const reset = useCallback(() => {
    resetZoom(zoom, sync);
    setRange(null);
  }, [zoom, sync, setRange]);
  return useMemo(() => ({ zoom, range, setRange, reset }), [zoom, range, setRange, reset]);
}

/** Return "MIN_MAX" in the axis's unit, exact to a millionth of the width. */
export function formatZoom({ min, max }: Range): string {
  const digits = Math.max(0, 6 - Math.floor(Math.log10(max - min)));
  return [min, max].map((value) => Number(value.toFixed(Math.min(12, digits)))).join("_");
}

/** Parse "MIN_MAX"; null if it is not a range. */
export function parseZoom(text: string): Range | null {
  const [min, max, ...more] = text.split("_").map((part) => (part === "" ? NaN : Number(part)));
  if (min === undefined || max === undefined || more.length > 0) return null;
  return Number.isFinite(min) && Number.isFinite(max) && min < max ? { min, max } : null;
}
