/** Metrics are named "whose/what": eval/accuracy, held_out/accuracy, eval/loss, train/loss. */
import type { Metrics, Version } from "../api/types";
import { visible } from "./text";

/** A kind of metric that most runs have. */
export type What = "accuracy" | "loss";

/** In the order of their colours. */
const WHOSE = ["eval", "held_out", "train"];
/** The most telling first: held-out data are always the same, and all of them. */
const TELLING = ["held_out", "eval", "train"];
const WORDS: Record<string, string> = { eval: "nodes", held_out: "held out", train: "training" };

const whose = (name: string) => name.slice(0, name.lastIndexOf("/"));
const place = (order: string[], name: string) => (order.includes(whose(name)) ? order.indexOf(whose(name)) : order.length);
const rank = (name: string) => place(TELLING, name);

/** The names of one kind of metric, the most telling first. */
export function namesOf(what: string, all: Iterable<string>): string[] {
  const names = [...new Set(all)].filter((name) => name === what || name.endsWith(`/${what}`));
  return names.sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

export function namesIn(what: string, versions: Version[]): string[] {
  const all = new Set<string>();
  for (const version of versions) for (const name of Object.keys(version.metrics)) all.add(name);
  return namesOf(what, all);
}

/** Which of the theme's four series colours a metric has: the same whether or not the others are there. */
export const colourOf = (name: string): number => place(WHOSE, name);

export const isWhileTraining = (name: string): boolean => whose(name) === "train";

export const isMeasuredByNodes = (name: string): boolean => whose(name) === "eval";

/** What a reader sees instead of the name: whose figure it is. */
export const wordsFor = (name: string): string => WORDS[whose(name)] ?? visible(name);

/** The most telling value of its kind, undefined if there is none. */
export function pick(what: What, metrics: Metrics): number | undefined {
  const [name] = namesOf(what, Object.keys(metrics));
  return name === undefined ? undefined : metrics[name];
}

/** The kinds of metric that versions have: accuracy and loss, which all pages speak of, then the others by name. */
export function kindsIn(versions: Version[]): string[] {
  const all = new Set<string>();
  for (const version of versions) {
    for (const name of Object.keys(version.metrics)) all.add(name.slice(name.lastIndexOf("/") + 1));
  }
  const others = [...all].filter((kind) => kind !== "accuracy" && kind !== "loss").sort();
  return ["accuracy", "loss", ...others];
}

/**
 * The version whose figures a legend shows: all of one version. It is the newest of those of which most is known; what
 * was measured while training does not count, for the last version is not trained on.
 */
export function toldTogether(names: string[], versions: Version[]): Version | undefined {
  const telling = names.some((name) => !isWhileTraining(name)) ? names.filter((name) => !isWhileTraining(name)) : names;
  let found: Version | undefined;
  let most = 0;
  for (let index = versions.length - 1; index >= 0 && most < telling.length; index -= 1) {
    const version = versions[index] as Version;
    const known = telling.filter((name) => version.metrics[name] !== undefined).length;
    if (known > most) [found, most] = [version, known];
  }
  return found;
}

export interface Reading {
  value: number;
  version: number;
}

/** The newest version that has a value of this kind: evaluations come later than their version. */
export function latest(what: What, versions: Version[]): Reading | undefined {
  const [name] = namesIn(what, versions);
  if (name === undefined) return undefined;
  const version = versions.findLast((candidate) => candidate.metrics[name] !== undefined);
  return version && { value: version.metrics[name] as number, version: version.number };
}

/** The best finite value of this kind: the highest accuracy or the lowest loss, and the first of equals. */
export function best(what: What, versions: Version[]): Reading | undefined {
  const [name] = namesIn(what, versions);
  if (name === undefined) return undefined;
  let found: Reading | undefined;
  for (const version of versions) {
    const value = version.metrics[name];
    if (value === undefined || !Number.isFinite(value)) continue;
    if (found === undefined || (what === "accuracy" ? value > found.value : value < found.value)) {
      found = { value, version: version.number };
    }
  }
  return found;
}
