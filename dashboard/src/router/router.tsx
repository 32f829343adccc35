/** The router: the path selects the page, the query string holds the state of its controls. */
import { useCallback, useSyncExternalStore, type AnchorHTMLAttributes, type MouseEvent } from "react";

const listeners = new Set<() => void>();

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  window.addEventListener("popstate", listener);
  return () => {
    listeners.delete(listener);
    window.removeEventListener("popstate", listener);
  };
}

function notify(): void {
  for (const listener of listeners) listener();
}

export function navigate(to: string): void {
  history.pushState(null, "", to);
  notify();
  window.scrollTo(0, 0);
}

export const usePath = (): string => useSyncExternalStore(subscribe, () => location.pathname);

/**
 * Return a control's value in the query string and its setter. The first of `allowed` is the default, which is left
 * out. `step`: changes are steps in the browser's history.
 */
export function useChoiceParam<T extends string>(
  name: string,
  allowed: readonly [T, ...T[]],
  step = false,
): [T, (value: T) => void] {
  const search = useSyncExternalStore(subscribe, () => location.search);
  const given = new URLSearchParams(search).get(name);
  const value = allowed.find((candidate) => candidate === given) ?? allowed[0];
  const set = useCallback(
    (next: T) => {
      setParam(name, next === allowed[0] ? "" : next, step);
    },
    [name, allowed, step],
  );
  return [value, set];
}

/** Return a text in the query string and its setter. */
export function useTextParam(name: string): [string, (value: string) => void] {
  const value = useParam(name);
  const set = useCallback((next: string) => replaceParam(name, next), [name]);
  return [value, set];
}

/** Return a value of the query string; empty if there is none. */
export function useParam(name: string): string {
  const search = useSyncExternalStore(subscribe, () => location.search);
  return new URLSearchParams(search).get(name) ?? "";
}

/** Return the first pattern that matches a path, and the values of its `:name` parts. */
export function matchRoute<P extends string>(path: string, patterns: readonly P[]): { pattern: P; names: string[] } | null {
  const parts = splitPath(path);
  for (const pattern of patterns) {
    const names = matchPattern(splitPath(pattern), parts);
    if (names !== null) return { pattern, names };
  }
  return null;
}

const splitPath = (path: string): string[] => path.split("/").filter((part) => part !== "");

function matchPattern(pattern: string[], parts: string[]): string[] | null {
  if (pattern.length !== parts.length) return null;
  const names: string[] = [];
  for (const [index, want] of pattern.entries()) {
    const got = parts[index] ?? "";
    if (!want.startsWith(":")) {
      if (got !== want) return null;
      continue;
    }
    try {
      names.push(decodeURIComponent(got));
    } catch {
      return null; // an invalid escape in a typed address
    }
  }
  return names;
}

export const comparePath = (jobs: string[]): string => `/compare?runs=${jobs.map(encodeURIComponent).join(",")}`;

/** Set or remove a value of the query string, without a step in the browser's history. */
export const replaceParam = (name: string, value: string): void => setParam(name, value, false);

function setParam(name: string, value: string, step: boolean): void {
  const query = new URLSearchParams(location.search);
  if ((query.get(name) ?? "") === value) return;
  if (value === "") query.delete(name);
  else query.set(name, value);
  const text = query.toString();
  const address = location.pathname + (text && `?${text}`);
  if (step) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  notify();
}

/** Return a list of names in the query string, separated by commas. */
export function useListParam(name: string): string[] {
  return useParam(name)
    .split(",")
    .filter((one) => one !== "");
}

export function toggleListParam(name: string, one: string, on: boolean): void {
  const listed = new URLSearchParams(location.search).get(name)?.split(",") ?? [];
  const others = listed.filter((other) => other !== "" && other !== one);
  replaceParam(name, (on ? [...others, one] : others).join(","));
}

/** Return whether a name is in the list, and a setter. */
export function useListItem(name: string, one: string): [boolean, (on: boolean) => void] {
  const set = useCallback((on: boolean) => toggleListParam(name, one, on), [name, one]);
  return [useListParam(name).includes(one), set];
}

export const tagPath = (tag: string): string => `/?tag=${encodeURIComponent(tag)}`;

/** Return the address of the form for a new job; `from`: the job that is cloned. */
export const newJobPath = (from?: string): string => (from === undefined ? "/new" : `/new?from=${encodeURIComponent(from)}`);

export const nodePath = (node: string): string => `/nodes/${encodeURIComponent(node)}`;

export const splitJobPath = (job: string): string => `/split/${encodeURIComponent(job)}`;

export const jobPath = (job: string): string => `/jobs/${encodeURIComponent(job)}`;

export function Link({ href, onClick, ...rest }: AnchorHTMLAttributes<HTMLAnchorElement> & { href: string }) {
  const go = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (event.defaultPrevented || !plain) return;
    event.preventDefault();
    navigate(href);
  };
  return <a {...rest} href={href} onClick={go} />;
}
