/** Global keyboard shortcuts. */

export type ShortcutAction = { kind: "go"; href: string } | { kind: "search" } | { kind: "help" } | { kind: "palette" };

/** Pages that "g" and another key open. */
export const PAGE_KEYS: ReadonlyMap<string, { href: string; text: string }> = new Map([
  ["j", { href: "/", text: "Jobs" }],
  ["n", { href: "/nodes", text: "Nodes" }],
  ["l", { href: "/logs", text: "Logs" }],
  ["a", { href: "/alerts", text: "Alerts" }],
  ["c", { href: "/compare", text: "Compare" }],
]);

/** Time for the second key after "g" (ms). */
export const SEQUENCE_MS = 1500;

export interface KeyPress {
  key: string;
  /** Modifier keys that are pressed. */
  ctrl: boolean;
  meta: boolean;
  alt: boolean;
  /** True if an input field or a dialog handles the key. */
  handled: boolean;
  /** True if shortcuts without Ctrl are on. */
  enabled: boolean;
  /** Time of the event (ms). */
  at: number;
}

/** Interpreter of key presses, including the two-key shortcuts. */
export class ShortcutReader {
  private since = -Infinity;

  press({ key, ctrl, meta, alt, handled, enabled, at }: KeyPress): ShortcutAction | null {
    const follows = at - this.since <= SEQUENCE_MS;
    this.since = -Infinity;
    if ((ctrl || meta) && !alt && key.toLowerCase() === "k") return { kind: "palette" };
    if (ctrl || meta || alt || handled || !enabled) return null;
    if (follows) {
      const place = PAGE_KEYS.get(key);
      if (place !== undefined) return { kind: "go", href: place.href };
    }
    if (key === "g") this.since = at;
    if (key === "/") return { kind: "search" };
    return key === "?" ? { kind: "help" } : null;
  }
}
