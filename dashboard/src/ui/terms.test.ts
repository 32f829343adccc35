import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { readSources } from "../test/sources";
import { TERMS } from "./terms";

/** Read the meanings of docs/reference/glossary.md by term, without the marks of code. */
function readGlossary(): Map<string, string> {
  const text = readFileSync(join(import.meta.dirname, "../../../docs/reference/glossary.md"), "utf8");
  const rows = [...text.matchAll(/^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$/gm)];
  return new Map(rows.map(([, term = "", meaning = ""]) => [term, meaning.replaceAll("`", "")]));
}

test("explanations are those of the glossary", () => {
  const glossary = readGlossary();
  expect(glossary.size).toBeGreaterThan(60);
  expect(TERMS).toEqual(Object.fromEntries(Object.keys(TERMS).map((term) => [term, glossary.get(term)])));
});

test("each explained term is on a page", () => {
  const pages = [...readSources()].filter(([path]) => path.endsWith(".tsx")).map(([, text]) => text);
  const isShown = (term: string) => pages.some((text) => text.includes(`of="${term}"`) || text.includes(`term="${term}"`) || text.includes(`term: "${term}"`));
  expect(Object.keys(TERMS).filter((term) => !isShown(term))).toEqual([]);
});
