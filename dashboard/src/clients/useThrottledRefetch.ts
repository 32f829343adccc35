import { useEffect, useRef } from "react";

const LEAST_MS = 1000;
/** Of the time, `act` may take one part in so many: what is much to ask for is asked for more seldom. */
const SHARE = 4;

/** Calls `act` when `mark` has changed, at most once a second, and never misses the last change. */
export function useLatest(mark: unknown, act: () => Promise<unknown>): void {
  const due = useRef(-Infinity);
  const current = useRef(act);
  current.current = act;
  const first = useRef(true);
  useEffect(() => {
    if (first.current) {
      first.current = false; // the page has just asked
      return;
    }
    const timer = setTimeout(
      () => {
        const begun = performance.now();
        due.current = begun + LEAST_MS;
        void current.current().finally(() => {
          due.current = Math.max(due.current, performance.now() + SHARE * (performance.now() - begun));
        });
      },
      Math.max(0, due.current - performance.now()),
    );
    return () => clearTimeout(timer);
  }, [mark]);
}
