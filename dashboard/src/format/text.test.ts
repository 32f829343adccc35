import { expect, test } from "vitest";
import { escapeHidden } from "./text";

test("characters that hide or turn the reading direction are written out", () => {
  expect(escapeHidden("node-\u202egnp.exe")).toBe("node-⟨202E⟩gnp.exe");
  expect(escapeHidden("a\u200bb\u0000c")).toBe("a⟨200B⟩b⟨0000⟩c");
});

test("what can be read stays as it is", () => {
  expect(escapeHidden("<img src=x onerror=alert(1)>")).toBe("<img src=x onerror=alert(1)>");
  expect(escapeHidden("Krankenhaus Süd · 東京 · مستشفى\n")).toBe("Krankenhaus Süd · 東京 · مستشفى\n");
});
