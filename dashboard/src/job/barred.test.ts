import { expect, test } from "vitest";
import { barred } from "./barred";

const asks = (selection: Record<string, unknown>) => ({ spec: { selection } });
const clinic = { name: "a", info: { tags: ["clinic", "gpu"] } };

test("who lacks a tag or is not named takes no part, and it is said why", () => {
  expect(barred({ spec: {} }, clinic)).toBe("");
  expect(barred(asks({ name: "uniform", tags: ["gpu", "clinic"], nodes: [] }), clinic)).toBe("");
  expect(barred(asks({ tags: ["gpu", "phone"] }), clinic)).toBe("without the tag phone");
  expect(barred(asks({ tags: ["gpu"] }), { name: "b", info: {} })).toBe("without the tag gpu");
  expect(barred(asks({ nodes: ["b"] }), clinic)).toBe("not named by the job");
  expect(barred(asks({ nodes: ["a", "b"] }), clinic)).toBe("");
});
