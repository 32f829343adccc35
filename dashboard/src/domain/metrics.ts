/** Metrics are named "source/kind": eval/accuracy, held_out/accuracy, eval/loss, train/loss. */
import type { Metrics, Version } from "../api/types";
import { capitalize, escapeHidden } from "../format/text";

/** The kinds of metric that most runs have. */
export type MetricKind = "accuracy" | "loss";

/** Sources in the order of their colors. */
const COLOR_ORDER = ["eval", "held_out", "train"];
/** Sources by priority: held-out data are always the same and complete. */
const PRIORITY_ORDER = ["held_out", "eval", "train"];
const SOURCE_LABELS: Record<string, string> = { eval: "nodes", held_out: "held out", train: "training" };

const metricSource = (name: string) => name.slice(0, name.lastIndexOf("/"));
const sourceIndex = (order: string[], name: string) => (order.includes(metricSource(name)) ? order.indexOf(metricSource(name)) : order.length);
const priority = (name: string) => sourceIndex(PRIORITY_ORDER, name);

/** Return whether a name is the number of examples or nodes over which another metric was taken: "eval/auc/nodes". */
const isCount = (name: string, all: Set<string>) => /\/(examples|nodes)$/.test(name) && all.has(metricSource(name));

/** Return the names of one kind of metric by priority. */
export function metricNames(what: string, all: Iterable<string>): string[] {
  const known = new Set(all);
  const names = [...known].filter((name) => (name === what || name.endsWith(`/${what}`)) && !isCount(name, known));
  return names.sort((a, b) => priority(a) - priority(b) || a.localeCompare(b));
}

export function metricNamesIn(what: string, versions: Version[]): string[] {
  const all = new Set<string>();
  for (const version of versions) for (const name of Object.keys(version.metrics)) all.add(name);
  return metricNames(what, all);
}

/** Return the index of the series color, which does not depend on the other metrics. */
export const seriesIndex = (name: string): number => sourceIndex(COLOR_ORDER, name);

export const isTrainingMetric = (name: string): boolean => metricSource(name) === "train";

export const isNodeEvaluation = (name: string): boolean => metricSource(name) === "eval";

/** Return the label of a metric's source. */
export const metricLabel = (name: string): string => SOURCE_LABELS[metricSource(name)] ?? escapeHidden(name);

/** Phrases in titles for the data that a metric was measured on. */
const SOURCE_PHRASES: Record<string, string> = { eval: " on the nodes' data", held_out: " on held-out data", train: " in training" };

/** Return the title of metrics of one kind: "Accuracy on held-out data (%)". Metrics of several sources have none in the title. */
export function metricTitle(kind: string, names: string[]): string {
  const [source, ...others] = new Set(names.map(metricSource));
  const phrase = others.length === 0 ? (SOURCE_PHRASES[source ?? ""] ?? "") : "";
  return `${capitalize(escapeHidden(kind.replaceAll("_", " ")))}${phrase}${kind === "accuracy" ? " (%)" : ""}`;
}

/** Return the value with the highest priority; undefined if there is none. */
export function pickMetric(what: MetricKind, metrics: Metrics): number | undefined {
  const [name] = metricNames(what, Object.keys(metrics));
  return name === undefined ? undefined : metrics[name];
}

const CURVE_POINT = /(^|\/)(accuracy|answered_\w+)@[01]\.\d$/;

/** Return whether a metric is a point of a curve of exits, "eval/accuracy@0.3": selections leave these out, but not "eval/recall@10". */
export const isCurvePoint = (name: string): boolean => CURVE_POINT.test(name);

/** Return the kinds of metric that versions have: accuracy and loss first, then the others by name. */
export function metricKindsIn(versions: Version[]): string[] {
  const all = new Set<string>();
  for (const version of versions) {
    for (const name of Object.keys(version.metrics)) all.add(name.slice(name.lastIndexOf("/") + 1));
  }
  const others = [...all].filter((kind) => kind !== "accuracy" && kind !== "loss" && !isCurvePoint(kind)).sort();
  return ["accuracy", "loss", ...others];
}

/**
 * Return the newest of the versions with the most values, so that a legend shows values of one version. Training
 * metrics do not count, because the last version is not trained on.
 */
export function latestComparableVersion(names: string[], versions: Version[]): Version | undefined {
  const telling = names.some((name) => !isTrainingMetric(name)) ? names.filter((name) => !isTrainingMetric(name)) : names;
  let found: Version | undefined;
  let most = 0;
  for (let index = versions.length - 1; index >= 0 && most < telling.length; index -= 1) {
    const version = versions[index] as Version;
    const known = telling.filter((name) => version.metrics[name] !== undefined).length;
    if (known > most) [found, most] = [version, known];
  }
  return found;
}

export interface MetricValue {
  value: number;
  version: number;
}

/** Return the newest value of this kind. Evaluations arrive after their version. */
export function latestMetric(what: MetricKind, versions: Version[]): MetricValue | undefined {
  const [name] = metricNamesIn(what, versions);
  if (name === undefined) return undefined;
  const version = versions.findLast((candidate) => candidate.metrics[name] !== undefined);
  return version && { value: version.metrics[name] as number, version: version.number };
}

/** Return the best finite value of this kind; the first of equal ones. */
export function bestMetric(what: MetricKind, versions: Version[]): MetricValue | undefined {
  const [name] = metricNamesIn(what, versions);
  if (name === undefined) return undefined;
  let found: MetricValue | undefined;
  for (const version of versions) {
    const value = version.metrics[name];
    if (value === undefined || !Number.isFinite(value)) continue;
    if (found === undefined || (what === "accuracy" ? value > found.value : value < found.value)) {
      found = { value, version: version.number };
    }
  }
  return found;
}

/** Return the metric that nodes measured themselves, of which the clients' values are known. */
export const clientMetric = (names: string[]): string | undefined => names.find((name) => !name.startsWith("held_out/"));
