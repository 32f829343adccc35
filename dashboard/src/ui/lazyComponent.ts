/**
 * Parts of the page that are loaded when they are first shown, or before that while the browser has nothing else to do:
 * so that a part which nobody has opened yet can be opened while the coordinator does not answer.
 */
import { lazy, type ComponentType, type LazyExoticComponent } from "react";
import { ApiError } from "../api/client";

type Load = () => Promise<unknown>;

/** Parts that have registered, in this order. A part that is loaded may register others. */
const parts = new Set<Load>();

/** Makes a component of a part; `atOnce`: it is loaded right away. */
export function lazily<P extends object>(
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
  if (atOnce) void part().catch(() => undefined); // who shows it says so
  return lazy(part);
}

const HINT = "The coordinator does not answer, or it was updated since this page was opened";

/** Loads all parts one after the other, each when there is nothing else to do. Stops at the first that fails. */
export async function loadAll(idle: () => Promise<unknown> = whenIdle, all: Iterable<Load> = parts): Promise<void> {
  for (const part of all) {
    await idle();
    try {
      await part();
    } catch {
      return; // who shows it says so
    }
  }
}

const IDLE_MS = 2000;

const whenIdle = (): Promise<unknown> =>
  new Promise((resolve) => {
    if ("requestIdleCallback" in window) requestIdleCallback(resolve, { timeout: IDLE_MS });
    else setTimeout(resolve, IDLE_MS / 10);
  });
