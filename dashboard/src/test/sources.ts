import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** Read all source files by their path relative to `src`, without tests and generated files. */
export function readSources(): Map<string, string> {
  const root = join(import.meta.dirname, "..");
  const paths = readdirSync(root, { recursive: true, encoding: "utf8" });
  const sources = paths.filter((path) => /\.tsx?$/.test(path) && !/\.(test|d)\.tsx?$|^test\//.test(path));
  return new Map(sources.map((path) => [path, readFileSync(join(root, path), "utf8")]));
}
