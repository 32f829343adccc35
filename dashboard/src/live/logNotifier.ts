/** Notifies log views of new log lines. The stream only announces them; a view fetches those that it shows. */
const listeners = new Set<() => void>();
let count = 0;

export const logNotifier = {
  notify(): void {
    count += 1;
    for (const listener of listeners) listener();
  },
  subscribe(listener: () => void): () => void {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
  /** Return the number of notifications. */
  get: (): number => count,
};
