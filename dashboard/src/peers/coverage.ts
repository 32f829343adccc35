/** Update coverage: the local rounds that each peer's model contains. */
import type { Peer } from "../api/types";
import { naturalOrder } from "../format/text";

export interface Coverage {
  names: string[];
  /** By peer, its latest known local round. */
  rounds: number[];
  /** Number of rounds: row: peer whose model it is, column: peer that made the rounds. */
  held: number[][];
}

export function coverage(peers: readonly Peer[]): Coverage {
  const told = peers.filter((peer) => peer.local_rounds !== null).sort((a, b) => naturalOrder(a.name, b.name));
  const names = told.map((peer) => peer.name);
  const held = told.map((peer) =>
    names.map((name) => Math.max(peer.rounds_by_peer.get(name) ?? 0, name === peer.name ? (peer.local_rounds ?? 0) : 0)),
  );
  const rounds = names.map((_, column) => Math.max(0, ...held.map((row) => row[column] ?? 0)));
  return { names, rounds, held };
}

/** Return the share of the column's rounds in the row's model; null if there are none. */
export function share({ rounds, held }: Coverage, row: number, column: number): number | null {
  const all = rounds[column] ?? 0;
  return all > 0 ? (held[row]?.[column] ?? 0) / all : null;
}

/** Number of colors; the last is for complete coverage only. */
export const LEVELS = 5;

export function level(share: number): number {
  return share >= 1 ? LEVELS - 1 : Math.min(LEVELS - 2, Math.floor(Math.max(0, share) * (LEVELS - 1)));
}

/** Return one path of squares per level; `size`: width of a cell, including its gap. */
export function levelPaths(coverage: Coverage, size: number, gap: number): string[] {
  const drawn = new Array<string>(LEVELS).fill("");
  const side = size - gap;
  coverage.names.forEach((_, row) => {
    coverage.names.forEach((_, column) => {
      const part = share(coverage, row, column);
      if (part !== null) drawn[level(part)] += `M${column * size} ${row * size}h${side}v${side}h${-side}Z`;
    });
  });
  return drawn;
}
