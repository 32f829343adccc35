import { useEffect, useReducer, useRef } from "react";

/** Longer than the time of three of the four redraws per second. */
const DELAY_MS = 800;

/**
 * Return `value`, updated when `trigger` changes or if there was no value yet, and otherwise only after `trigger` has not
 * changed for `DELAY_MS`. A chart of both is therefore drawn no more often than a chart of `trigger` alone.
 */
export function useCoalescedValue<T>(value: T | undefined, trigger: unknown): T | undefined {
  const state = useRef({ value, trigger, at: performance.now() });
  const [, rerender] = useReducer((count: number) => count + 1, 0);
  if (state.current.trigger !== trigger) state.current = { value, trigger, at: performance.now() };
  else if (state.current.value === undefined) state.current = { ...state.current, value };
  const shown = state.current.value;
  useEffect(() => {
    if (shown === value) return;
    const delay = state.current.at + DELAY_MS - performance.now();
    const timer = setTimeout(() => {
      state.current = { ...state.current, value };
      rerender();
    }, Math.max(0, delay));
    return () => clearTimeout(timer);
  }, [shown, value, trigger]);
  return shown;
}
