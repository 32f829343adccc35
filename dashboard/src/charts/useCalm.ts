import { useEffect, useReducer, useRef } from "react";

/** Longer than three of the four redraws that a second may have. */
const CALM_MS = 800;

/**
 * `value` as it is to be drawn together with `mark`: at once when `mark` changes, or while there was none; by itself
 * only when `mark` has been quiet for a while. So a chart of both is drawn no more often than one of `mark` alone.
 */
export function useCalm<T>(value: T | undefined, mark: unknown): T | undefined {
  const taken = useRef({ value, mark, at: performance.now() });
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  if (taken.current.mark !== mark) taken.current = { value, mark, at: performance.now() };
  else if (taken.current.value === undefined) taken.current = { ...taken.current, value };
  const shown = taken.current.value;
  useEffect(() => {
    if (shown === value) return;
    const wait = taken.current.at + CALM_MS - performance.now();
    const timer = setTimeout(() => {
      taken.current = { ...taken.current, value };
      redraw();
    }, Math.max(0, wait));
    return () => clearTimeout(timer);
  }, [shown, value, mark]);
  return shown;
}
