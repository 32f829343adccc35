/**
 * Setting of the shortcuts without Ctrl. They can be turned off, because speech input may trigger them (WCAG 2.1.4).
 */
import { useSyncExternalStore } from "react";

const STORAGE_KEY = "shoal-keys";
const listeners = new Set<() => void>();
let enabled = load();

export const shortcutSetting = {
  get: (): boolean => enabled,
  set(value: boolean): void {
    enabled = value;
    save(value);
    for (const listener of listeners) listener();
  },
};

export const useShortcutSetting = (): boolean => useSyncExternalStore(subscribe, shortcutSetting.get);

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function load(): boolean {
  try {
    return localStorage.getItem(STORAGE_KEY) !== "off";
  } catch {
    return true; // storage may be blocked; the setting is then kept until the page is closed
  }
}

function save(value: boolean): void {
  try {
    if (value) localStorage.removeItem(STORAGE_KEY);
    else localStorage.setItem(STORAGE_KEY, "off");
  } catch {
    return; // see `load`
  }
}
