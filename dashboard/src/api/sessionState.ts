/** Whether the coordinator has asked for a session before it shows anything, and whether somebody wants to sign in. */
import { useSyncExternalStore } from "react";

class Flag {
  private value = false;
  private readonly listeners = new Set<() => void>();

  readonly get = (): boolean => this.value;

  readonly set = (value: boolean): void => {
    if (value === this.value) return;
    this.value = value;
    for (const listener of this.listeners) listener();
  };

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };
}

const closed = new Flag();
const asked = new Flag();

export const setGateClosed = closed.set;
export const useGateClosed = (): boolean => useSyncExternalStore(closed.subscribe, closed.get);

/** Opens the form in which one signs in, above everything else. */
export const askToSignIn = (): void => asked.set(true);
export const endSignIn = (): void => asked.set(false);
export const useSignInAsked = (): boolean => useSyncExternalStore(asked.subscribe, asked.get);
