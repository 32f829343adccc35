/** Light, dark, or whatever the system says; the document carries the result as data-theme. */
import { useSyncExternalStore } from "react";
import { flushSync } from "react-dom";

export type Preference = "system" | "light" | "dark";
export type Resolved = "light" | "dark";

export interface Theme {
  preference: Preference;
  resolved: Resolved;
}

const STORED = "shoal-theme";
const listeners = new Set<() => void>();
let theme: Theme = { preference: "system", resolved: "light" };

const systemDark = () => matchMedia("(prefers-color-scheme: dark)");

/** Reads the stored choice and follows the system from now on. */
export function startTheme(): void {
  systemDark().addEventListener("change", () => setTheme(theme.preference));
  // Paper is light. What draws on canvases has to draw anew before the page is printed.
  window.addEventListener("beforeprint", () => flushSync(() => show({ ...theme, resolved: "light" })));
  window.addEventListener("afterprint", () => setTheme(theme.preference));
  setTheme(stored());
}

export function setTheme(preference: Preference): void {
  const resolved = preference === "system" ? (systemDark().matches ? "dark" : "light") : preference;
  store(preference);
  show({ preference, resolved });
}

function show(next: Theme): void {
  theme = next;
  document.documentElement.dataset.theme = next.resolved;
  for (const listener of listeners) listener();
}

/** The next choice of a button that goes round: the first step always changes what is seen. */
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

function stored(): Preference {
  try {
    const value = localStorage.getItem(STORED);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system"; // storage may be forbidden; the choice then lasts as long as the page
  }
}

function store(preference: Preference): void {
  try {
    localStorage.setItem(STORED, preference);
  } catch {
    return; // see `stored`
  }
}
