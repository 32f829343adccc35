/** Whether keys without Ctrl mean anything: who speaks to the machine, or hits keys unawares, can switch them off. */
import { useSyncExternalStore } from "react";

const STORED = "shoal-keys";
const listeners = new Set<() => void>();
let on = stored();

export const singles = {
  get: (): boolean => on,
  set(value: boolean): void {
    on = value;
    store(value);
    for (const listener of listeners) listener();
  },
};

export const useSingles = (): boolean => useSyncExternalStore(subscribe, singles.get);

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function stored(): boolean {
  try {
    return localStorage.getItem(STORED) !== "off";
  } catch {
    return true; // storage may be forbidden; the choice then lasts as long as the page
  }
}

function store(value: boolean): void {
  try {
    if (value) localStorage.removeItem(STORED);
    else localStorage.setItem(STORED, "off");
  } catch {
    return; // see `stored`
  }
}
