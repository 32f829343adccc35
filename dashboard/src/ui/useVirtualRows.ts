import { useEffect, useState, type RefObject } from "react";
import { flushSync } from "react-dom";

/** Shorter tables are rendered completely. */
export const ROWS_MAX = 80;
/** Assumed height of a row until rows are measured (px). */
const ROW = 48;
const OVERSCAN = 15;

export interface VirtualRows {
  /** The range of rows to render. */
  from: number;
  to: number;
  /** Heights of the rows before and after it (px). */
  before: number;
  after: number;
}

/** Return the rows of a long table that are near the screen, whatever element scrolls; all rows when printing. */
export function useVirtualRows(count: number, body: RefObject<HTMLElement | null>): VirtualRows {
  const [view, setView] = useState({ top: 0, height: 1000, row: ROW, isPrinted: false });
  const isLong = count > ROWS_MAX;
  useEffect(() => {
    if (!isLong) return;
    const measure = () => {
      const element = body.current;
      if (element === null) return;
      const rows = [...element.children].filter((child) => !child.hasAttribute("data-spacer"));
      const mean = rows.reduce((sum, row) => sum + row.getBoundingClientRect().height, 0) / Math.max(1, rows.length);
      const top = Math.max(0, -element.getBoundingClientRect().top);
      setView((known) => {
        // Rows differ a little in height; a difference of a pixel must not move everything.
        const row = mean > 0 && Math.abs(mean - known.row) > 2 ? mean : known.row;
        const step = Math.floor(top / (row * (OVERSCAN / 3))) * row * (OVERSCAN / 3);
        const isSame = step === known.top && row === known.row && known.height === innerHeight;
        return isSame ? known : { ...known, top: step, height: innerHeight, row };
      });
    };
    const setPrinted = (isPrinted: boolean) => () => flushSync(() => setView((known) => ({ ...known, isPrinted })));
    const [onBeforePrint, onAfterPrint] = [setPrinted(true), setPrinted(false)];
    measure();
    addEventListener("scroll", measure, { passive: true, capture: true });
    addEventListener("resize", measure);
    addEventListener("beforeprint", onBeforePrint);
    addEventListener("afterprint", onAfterPrint);
    return () => {
      removeEventListener("scroll", measure, { capture: true });
      removeEventListener("resize", measure);
      removeEventListener("beforeprint", onBeforePrint);
      removeEventListener("afterprint", onAfterPrint);
    };
  }, [isLong, body]);
  if (!isLong || view.isPrinted) return { from: 0, to: count, before: 0, after: 0 };
  const [from, to] = visibleRange(Math.min(view.top, count * view.row), view.height, view.row, count, OVERSCAN);
  return { from, to, before: from * view.row, after: (count - to) * view.row };
}

/** Return the range of rows to render: those on the screen and `overscan` more on either side. Lengths in px. */
export function visibleRange(top: number, height: number, row: number, count: number, overscan = 12): [number, number] {
  const first = Math.max(0, Math.floor(top / row) - overscan);
  return [Math.min(first, count), Math.min(count, Math.ceil((top + height) / row) + overscan)];
}
