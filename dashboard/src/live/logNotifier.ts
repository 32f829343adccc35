/** That there are new log lines. The stream only says so; who looks at a log asks for what it wants to see of them. */
const listeners = new Set<() => void>();
let count = 0;

export const newLines = {
  tell(): void {
    count += 1;
    for (const listener of listeners) listener();
  },
  subscribe(listener: () => void): () => void {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
  /** Changes whenever there is something new. */
  get: (): number => count,
};
