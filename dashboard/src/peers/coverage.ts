/** Whose local rounds each peer's model holds. */
import type { Peer } from "../api/types";
import { byNumber } from "../format/text";

export interface Coverage {
  names: string[];
  /** By peer, its latest local round that anybody has told of. */
  rounds: number[];
  /** Row: whose model; column: whose rounds; how many of them it holds. */
  held: number[][];
}

export function coverage(peers: readonly Peer[]): Coverage {
  const told = peers.filter((peer) => peer.round !== null).sort((a, b) => byNumber(a.name, b.name));
  const names = told.map((peer) => peer.name);
  const held = told.map((peer) =>
    names.map((name) => Math.max(peer.seen.get(name) ?? 0, name === peer.name ? (peer.round ?? 0) : 0)),
  );
  const rounds = names.map((_, column) => Math.max(0, ...held.map((row) => row[column] ?? 0)));
  return { names, rounds, held };
}

/** Of the column's rounds, the share that the row's model holds; null while there are none. */
export function share({ rounds, held }: Coverage, row: number, column: number): number | null {
  const all = rounds[column] ?? 0;
  return all > 0 ? (held[row]?.[column] ?? 0) / all : null;
}

/** A share is drawn in one of this many strengths; the last is all of them, and only that. */
export const LEVELS = 5;

export function level(share: number): number {
  return share >= 1 ? LEVELS - 1 : Math.min(LEVELS - 2, Math.floor(Math.max(0, share) * (LEVELS - 1)));
}

/** The cells of each level as one path of squares, for a matrix whose cells are `size` wide with a gap of `gap`. */
export function paths(coverage: Coverage, size: number, gap: number): string[] {
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
