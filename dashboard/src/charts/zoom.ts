/** A zoom that is part of the address, for all charts that share a pointer. */
import { useCallback, useMemo, useState } from "react";
import { replaceParam, useParam } from "../router";
import { resetZoom, type Range, type Zoom } from "./options";

export interface KeptZoom {
  /** What the charts look at. */
  zoom: Zoom;
  /** What the address says; null: everything is shown. */
  range: Range | null;
  /** The charts show this now. */
  keep: (range: Range | null) => void;
  /** Shows everything again. */
  showAll: () => void;
}

/** `name`: in the address; `sync`: the pointer that the charts share. */
export function useZoom(name: string, sync: string): KeptZoom {
  const given = useParam(name);
  const range = useMemo(() => parseZoom(given), [given]);
  const [zoom] = useState<Zoom>(() => ({ current: range }));
  const keep = useCallback((shown: Range | null) => replaceParam(name, shown === null ? "" : writeZoom(shown)), [name]);
  const showAll = useCallback(() => {
    resetZoom(zoom, sync);
    keep(null);
  }, [zoom, sync, keep]);
  return useMemo(() => ({ zoom, range, keep, showAll }), [zoom, range, keep, showAll]);
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
