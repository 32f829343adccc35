/** Whether the coordinator has asked for a session before it shows anything. */
import { useSyncExternalStore } from "react";

let closed = false;
const listeners = new Set<() => void>();

export function setGateClosed(value: boolean): void {
  if (value === closed) return;
  closed = value;
  for (const listener of listeners) listener();
}

export function useGateClosed(): boolean {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => closed,
  );
}
