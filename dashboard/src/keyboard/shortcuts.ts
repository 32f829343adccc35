/** What keys mean, wherever one is. */

export type Act = { kind: "go"; href: string } | { kind: "search" } | { kind: "help" } | { kind: "palette" };

/** Where "g" and another key lead. */
export const GOES: ReadonlyMap<string, { href: string; text: string }> = new Map([
  ["j", { href: "/", text: "Jobs" }],
  ["n", { href: "/nodes", text: "Nodes" }],
  ["l", { href: "/logs", text: "Logs" }],
  ["a", { href: "/alerts", text: "Alerts" }],
  ["c", { href: "/compare", text: "Compare" }],
]);

/** How long "g" waits for what follows it (ms). */
export const PATIENCE = 1500;

export interface Press {
  key: string;
  /** Of Ctrl, Meta and Alt, whether any is held. */
  ctrl: boolean;
  meta: boolean;
  alt: boolean;
  /** Whether the key belongs to a field in which one writes, or to an open dialog. */
  taken: boolean;
  /** Whether keys alone mean something. */
  singles: boolean;
  /** When (ms). */
  at: number;
}

/** Follows what is pressed; a key means the same on every page. */
export class Keys {
  private since = -Infinity;

  press({ key, ctrl, meta, alt, taken, singles, at }: Press): Act | null {
    const follows = at - this.since <= PATIENCE;
    this.since = -Infinity;
    if ((ctrl || meta) && !alt && key.toLowerCase() === "k") return { kind: "palette" };
    if (ctrl || meta || alt || taken || !singles) return null;
    if (follows) {
      const place = GOES.get(key);
      if (place !== undefined) return { kind: "go", href: place.href };
    }
    if (key === "g") this.since = at;
    if (key === "/") return { kind: "search" };
    return key === "?" ? { kind: "help" } : null;
  }
}
