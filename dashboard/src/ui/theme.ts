/** The theme: light, dark, or the system's. It is applied as data-theme of the document. */
import { useSyncExternalStore } from "react";
import { flushSync } from "react-dom";

export type Preference = "system" | "light" | "dark";
export type Resolved = "light" | "dark";

export interface Theme {
  preference: Preference;
  resolved: Resolved;
}

const STORAGE_KEY = "shoal-theme";
const listeners = new Set<() => void>();
let theme: Theme = { preference: "system", resolved: "light" };

const systemDark = () => matchMedia("(prefers-color-scheme: dark)");

/** Load the stored preference and follow the system's theme. */
export function startTheme(): void {
  systemDark().addEventListener("change", () => setTheme(theme.preference));
  // Pages are printed in the light theme; canvases are redrawn before.
  window.addEventListener("beforeprint", () => flushSync(() => applyTheme({ ...theme, resolved: "light" })));
  window.addEventListener("afterprint", () => setTheme(theme.preference));
  setTheme(loadPreference());
}

export function setTheme(preference: Preference): void {
  const resolved = preference === "system" ? (systemDark().matches ? "dark" : "light") : preference;
  savePreference(preference);
  applyTheme({ preference, resolved });
}

function applyTheme(next: Theme): void {
  theme = next;
  document.documentElement.dataset.theme = next.resolved;
  for (const listener of listeners) listener();
}

/** Return the next preference of the toggle; its first step always changes the theme. */
export function nextPreference({ preference, resolved }: Theme, system: Resolved): Preference {
  const opposite = system === "dark" ? "light" : "dark";
  if (preference === "system") return opposite;
  return resolved === opposite ? system : "system";
}

export const systemTheme = (): Resolved => (systemDark().matches ? "dark" : "light");

export function useTheme(): Theme {
  return useSyncExternalStore(subscribe, () => theme);
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function loadPreference(): Preference {
  try {
    const value = localStorage.getItem(STORAGE_KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system"; // storage may be blocked; the preference is then kept until the page is closed
  }
}

function savePreference(preference: Preference): void {
  try {
    localStorage.setItem(STORAGE_KEY, preference);
  } catch {
    return; // see `loadPreference`
  }
}
