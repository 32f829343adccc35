/**
 * Components that are loaded when they are first shown, or before that while the browser is idle, so that they can be
 * shown while the coordinator does not answer.
 */
import { lazy, type ComponentType, type LazyExoticComponent } from "react";
import { ApiError } from "../api/client";

type Load = () => Promise<unknown>;

/** Registered components. Loading one may register others. */
const parts = new Set<Load>();

/** Return a lazy component; `atOnce`: load it immediately. */
export function lazyComponent<P extends object>(
  load: () => Promise<ComponentType<P>>,
  atOnce = false,
): LazyExoticComponent<ComponentType<P>> {
  let loading: Promise<{ default: ComponentType<P> }> | undefined;
  const part = () =>
    (loading ??= load().then(
      (component) => ({ default: component }),
      () => {
        throw new ApiError(0, "This part of the page could not be loaded", "", HINT);
      },
    ));
  parts.add(part);
  if (atOnce) void part().catch(() => undefined); // the error is shown where the component is rendered
  return lazy(part);
}

const HINT = "The coordinator does not answer, or it was updated since this page was opened";

/** Load all components one after the other while the browser is idle. Stops at the first failure. */
export async function preloadAll(idle: () => Promise<unknown> = whenIdle, all: Iterable<Load> = parts): Promise<void> {
  for (const part of all) {
    await idle();
    try {
      await part();
    } catch {
      return; // the error is shown where the component is rendered
    }
  }
}

const IDLE_MS = 2000;

const whenIdle = (): Promise<unknown> =>
  new Promise((resolve) => {
    if ("requestIdleCallback" in window) requestIdleCallback(resolve, { timeout: IDLE_MS });
    else setTimeout(resolve, IDLE_MS / 10);
  });
