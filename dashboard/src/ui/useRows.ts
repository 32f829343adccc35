import { useEffect, useState, type RefObject } from "react";
import { flushSync } from "react-dom";
import { onScreen } from "../observe/window";

/** Tables of so many rows are there as a whole. */
export const ROWS_MAX = 80;
const ROW = 48;
const SPARE = 15;

export interface Rows {
  /** The rows to draw, and how much room the others need (px). */
  from: number;
  to: number;
  before: number;
  after: number;
}

/** Of a long table only the rows near the screen, whatever scrolls; on paper all. `body`: the element of the rows. */
export function useRows(count: number, body: RefObject<HTMLElement | null>): Rows {
  const [view, setView] = useState({ top: 0, height: 1000, row: ROW, printed: false });
  const long = count > ROWS_MAX;
  useEffect(() => {
    if (!long) return;
    const look = () => {
      const element = body.current;
      if (element === null) return;
      const rows = [...element.children].filter((child) => !child.hasAttribute("data-room"));
      const tall = rows.reduce((sum, one) => sum + one.getBoundingClientRect().height, 0) / Math.max(1, rows.length);
      const top = Math.max(0, -element.getBoundingClientRect().top);
      setView((known) => {
        // Rows are not all of one height: what is a pixel off is no reason to move everything.
        const row = tall > 0 && Math.abs(tall - known.row) > 2 ? tall : known.row;
        const step = Math.floor(top / (row * (SPARE / 3))) * row * (SPARE / 3);
        const same = step === known.top && row === known.row && known.height === innerHeight;
        return same ? known : { ...known, top: step, height: innerHeight, row };
      });
    };
    const print = (printed: boolean) => () => flushSync(() => setView((known) => ({ ...known, printed })));
    const [begin, end] = [print(true), print(false)];
    look();
    addEventListener("scroll", look, { passive: true, capture: true });
    addEventListener("resize", look);
    addEventListener("beforeprint", begin);
    addEventListener("afterprint", end);
    return () => {
      removeEventListener("scroll", look, { capture: true });
      removeEventListener("resize", look);
      removeEventListener("beforeprint", begin);
      removeEventListener("afterprint", end);
    };
  }, [long, body]);
  if (!long || view.printed) return { from: 0, to: count, before: 0, after: 0 };
  const [from, to] = onScreen(Math.min(view.top, count * view.row), view.height, view.row, count, SPARE);
  return { from, to, before: from * view.row, after: (count - to) * view.row };
}
