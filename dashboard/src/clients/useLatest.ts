import { useEffect, useRef } from "react";

const LEAST_MS = 1000;

/** Calls `act` when `mark` has changed, at most once a second, and never misses the last change. */
export function useLatest(mark: unknown, act: () => void): void {
  const last = useRef(-Infinity);
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
        last.current = performance.now();
        current.current();
      },
      Math.max(0, last.current + LEAST_MS - performance.now()),
    );
    return () => clearTimeout(timer);
  }, [mark]);
}
