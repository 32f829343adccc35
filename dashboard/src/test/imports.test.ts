import { expect, test } from "vitest";
import { importCycle, importsOf, layerViolations } from "./imports";
import { readSources } from "./sources";

test("folders import only from layers below them", () => {
  const sources = readSources();
  expect(sources.size).toBeGreaterThan(100);
  expect(layerViolations(sources)).toEqual([]);
});

test("no files import each other in a circle", () => {
  expect(importCycle(readSources())).toEqual([]);
});

test("static, lazy, type and style imports are found", () => {
  const text = 'import a from "./a";\nimport type { B } from "../ui/B";\nimport "../styles/x.css";\nawait import("../job/C");';
  expect(importsOf("charts/Plot.tsx", text)).toEqual(["charts/a", "ui/B", "styles/x.css", "job/C"]);
});

test("an import of a sibling, of a higher layer and from an unknown folder is found", () => {
  const sources = new Map([
    ["charts/a.ts", 'import type { B } from "../clients/b";'],
    ["clients/b.ts", 'import { a } from "../charts/a";\nimport { c } from "../peers/c";'],
    ["peers/c.ts", 'import "../styles/peers.css";'],
    ["misc/d.ts", ""],
    ["App.tsx", 'import { a } from "./charts/a";'],
  ]);
  expect(layerViolations(sources)).toEqual(["charts/a.ts → clients/b", "clients/b.ts → peers/c", "misc/d.ts is in no layer"]);
});

test("a circle of three files is found, also through types", () => {
  const sources = new Map([
    ["job/a.ts", 'import { b } from "./b";'],
    ["job/b.tsx", 'import type { C } from "../ui/c";'],
    ["ui/c.ts", 'import { a } from "../job/a";'],
    ["ui/d.ts", 'import { c } from "./c";'],
  ]);
  expect(importCycle(sources)).toEqual(["job/a", "job/b", "ui/c", "job/a"]);
});
