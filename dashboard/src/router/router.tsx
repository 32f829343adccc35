/** A router for a handful of pages: the path names the page, the query string keeps every control. */
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
 * One control of the page, kept in the query string; the first of `allowed` is the default and is left out. `step`: a
 * choice is a step that Back undoes, as it should be where another view is shown.
 */
export function useChoice<T extends string>(
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

/** A text of the page, kept in the query string; where it is empty, it is left out. */
export function useText(name: string): [string, (value: string) => void] {
  const value = useParam(name);
  const set = useCallback((next: string) => replaceParam(name, next), [name]);
  return [value, set];
}

/** A value of the query string; empty if there is none. */
export function useParam(name: string): string {
  const search = useSyncExternalStore(subscribe, () => location.search);
  return new URLSearchParams(search).get(name) ?? "";
}

/** Where an address leads: the first of `patterns` that it fits, and what stands in the places of `:name`. */
export function route<P extends string>(path: string, patterns: readonly P[]): { pattern: P; names: string[] } | null {
  const parts = split(path);
  for (const pattern of patterns) {
    const names = fit(split(pattern), parts);
    if (names !== null) return { pattern, names };
  }
  return null;
}

const split = (path: string): string[] => path.split("/").filter((part) => part !== "");

function fit(pattern: string[], parts: string[]): string[] | null {
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
      return null; // a stray % in a typed address
    }
  }
  return names;
}

export const comparePath = (jobs: string[]): string => `/compare?runs=${jobs.map(encodeURIComponent).join(",")}`;

/** Puts a value into the query string, or takes it out; the address is not a step that Back undoes. */
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

/** Names in the query string, with commas between them; none of them holds one. */
export function useList(name: string): string[] {
  return useParam(name)
    .split(",")
    .filter((one) => one !== "");
}

export function setListed(name: string, one: string, on: boolean): void {
  const listed = new URLSearchParams(location.search).get(name)?.split(",") ?? [];
  const others = listed.filter((other) => other !== "" && other !== one);
  replaceParam(name, (on ? [...others, one] : others).join(","));
}

/** Whether one is in such a list. */
export function useListed(name: string, one: string): [boolean, (on: boolean) => void] {
  const set = useCallback((on: boolean) => setListed(name, one, on), [name, one]);
  return [useList(name).includes(one), set];
}

/** The jobs that have a tag. */
export const taggedPath = (tag: string): string => `/?tag=${encodeURIComponent(tag)}`;

/** The form for a new job; `from`: filled in with what another was. */
export const newJobPath = (from?: string): string => (from === undefined ? "/new" : `/new?from=${encodeURIComponent(from)}`);

export const nodePath = (node: string): string => `/nodes/${encodeURIComponent(node)}`;

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
