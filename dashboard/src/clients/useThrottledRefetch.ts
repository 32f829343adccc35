import { useEffect, useRef } from "react";

const INTERVAL_MS = 1000;
/** The pause after a refetch, as a multiple of its duration, so that slow requests are repeated less often. */
const SHARE = 4;

/** Call `refetch` when `trigger` changes, at most once per second; the last change is never missed. */
export function useThrottledRefetch(mark: unknown, act: () => Promise<unknown>): void {
  const due = useRef(-Infinity);
  const current = useRef(act);
  current.current = act;
  const first = useRef(true);
  useEffect(() => {
    if (first.current) {
      first.current = false; // the query has just been fetched
      return;
    }
    const timer = setTimeout(
      () => {
        const begun = performance.now();
        due.current = begun + INTERVAL_MS;
        void current.current().finally(() => {
          due.current = Math.max(due.current, performance.now() + SHARE * (performance.now() - begun));
        });
      },
      Math.max(0, due.current - performance.now()),
    );
    return () => clearTimeout(timer);
  }, [mark]);
}
