/** Checks of the imports between source files: folder layers and cycles between files. */

/**
 * Folders from the bottom layer to the top. A folder may import from earlier rows, but neither from its own row nor
 * from later ones. "." are the files directly in `src`.
 */
export const LAYERS: readonly (readonly string[])[] = [
  ["api", "edge", "format"],
  ["domain", "router"],
  ["live"],
  ["queries"],
  ["ui"],
  ["charts"],
  ["alerts", "clients", "divergence", "exits", "failures", "logs", "models", "peers", "session", "split"],
  ["keyboard"],
  ["compare", "job", "jobs", "join", "newjob", "nodes"],
  ["."],
];

/** Source text by path relative to `src`, such as "job/JobPage.tsx". */
export type Sources = ReadonlyMap<string, string>;

const IMPORT = /(?:from|import)\s*\(?\s*"(\.[^"]+)"/g;

/** Return the modules that a file imports, as paths relative to `src` without extension. */
export function importsOf(path: string, text: string): string[] {
  const folder = path.split("/").slice(0, -1);
  return [...text.matchAll(IMPORT)].map(([, specifier = ""]) => {
    const parts = [...folder];
    for (const part of specifier.split("/")) {
      if (part === "..") parts.pop();
      else if (part !== ".") parts.push(part);
    }
    return parts.join("/");
  });
}

const folderOf = (path: string): string => (path.includes("/") ? (path.split("/")[0] as string) : ".");

/** Return the imports that break the layers, as "from → to", and the folders that no layer names. */
export function layerViolations(sources: Sources, layers = LAYERS): string[] {
  const level = new Map(layers.flatMap((row, index) => row.map((folder): [string, number] => [folder, index])));
  const found: string[] = [];
  for (const [path, text] of sources) {
    const from = folderOf(path);
    const own = level.get(from);
    if (own === undefined) found.push(`${path} is in no layer`);
    for (const target of importsOf(path, text)) {
      const to = folderOf(target);
      if (to === "styles" || to === from || own === undefined) continue;
      const below = level.get(to) ?? Infinity;
      if (below >= own) found.push(`${path} → ${target}`);
    }
  }
  return found;
}

/** Return the first cycle of files that import each other, as a list of paths; empty if there is none. Types count. */
export function importCycle(sources: Sources): string[] {
  const modules = new Map([...sources].map(([path, text]) => [path.replace(/\.tsx?$/, ""), importsOf(path, text)]));
  const done = new Set<string>();
  const visit = (module: string, stack: string[]): string[] => {
    const start = stack.indexOf(module);
    if (start >= 0) return [...stack.slice(start), module];
    if (done.has(module)) return [];
    for (const next of modules.get(module) ?? []) {
      const cycle = visit(next, [...stack, module]);
      if (cycle.length > 0) return cycle;
    }
    done.add(module);
    return [];
  };
  for (const module of modules.keys()) {
    const cycle = visit(module, []);
    if (cycle.length > 0) return cycle;
  }
  return [];
}
