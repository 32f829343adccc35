/** State of the session: whether the coordinator requires one, and whether the sign-in form is open. */
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

const signInRequired = new Flag();
const signInOpen = new Flag();

export const setSignInRequired = signInRequired.set;
export const useSignInRequired = (): boolean => useSyncExternalStore(signInRequired.subscribe, signInRequired.get);

export const openSignIn = (): void => signInOpen.set(true);
export const closeSignIn = (): void => signInOpen.set(false);
export const useSignInOpen = (): boolean => useSyncExternalStore(signInOpen.subscribe, signInOpen.get);
