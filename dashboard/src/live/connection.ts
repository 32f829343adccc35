/** How current the page is, as a state machine without a clock of its own. */

export type Phase = "live" | "reconnecting" | "unreachable";

export interface Connection {
  readonly phase: Phase;
  /** When the contact was lost (ms); null while live. */
  readonly lostAt: number | null;
  /** False until the first contact: then the page is connecting rather than reconnecting. */
  readonly known: boolean;
  /** The coordinator's clock minus this browser's (ms). */
  readonly skew: number;
}

/** A lost contact that has not come back after this long is called unreachable (ms). */
export const GRACE = 5000;

export const begin = (now: number): Connection => ({ phase: "reconnecting", lostAt: now, known: false, skew: 0 });

export function greeted(connection: Connection, now: number, serverTime: string | undefined): Connection {
  const there = serverTime === undefined ? NaN : Date.parse(serverTime);
  return { phase: "live", lostAt: null, known: true, skew: Number.isNaN(there) ? connection.skew : there - now };
}

export function lost(connection: Connection, now: number): Connection {
  return connection.phase === "live" ? { ...connection, phase: "reconnecting", lostAt: now } : connection;
}

export function aged(connection: Connection, now: number): Connection {
  const late = connection.phase === "reconnecting" && connection.lostAt !== null && now - connection.lostAt >= GRACE;
  return late ? { ...connection, phase: "unreachable" } : connection;
}
