/** The state of the connection to the coordinator, as pure functions of the time. */

export type Phase = "live" | "reconnecting" | "unreachable";

export interface Connection {
  readonly phase: Phase;
  /** Time of the disconnection (ms); null while live. */
  readonly lostAt: number | null;
  /** False until the first connection. */
  readonly wasConnected: boolean;
  /** The coordinator's clock minus this browser's (ms). */
  readonly skew: number;
}

/** Time without a connection after which the coordinator is shown as unreachable (ms). */
export const UNREACHABLE_MS = 5000;

export const initialConnection = (now: number): Connection => ({
  phase: "reconnecting",
  lostAt: now,
  wasConnected: false,
  skew: 0,
});

export function connected(connection: Connection, now: number, serverTime: string | undefined): Connection {
  const server = serverTime === undefined ? NaN : Date.parse(serverTime);
  const skew = Number.isNaN(server) ? connection.skew : server - now;
  return { phase: "live", lostAt: null, wasConnected: true, skew };
}

export function disconnected(connection: Connection, now: number): Connection {
  return connection.phase === "live" ? { ...connection, phase: "reconnecting", lostAt: now } : connection;
}

export function checkTimeout(connection: Connection, now: number): Connection {
  const { phase, lostAt } = connection;
  const isLate = phase === "reconnecting" && lostAt !== null && now - lostAt >= UNREACHABLE_MS;
  return isLate ? { ...connection, phase: "unreachable" } : connection;
}
