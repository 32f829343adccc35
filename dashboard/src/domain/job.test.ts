import { expect, test } from "vitest";
import { baseModelNote } from "./job";

test("a base model is shown with its size and the nodes that hold it", () => {
  const base = { digest: "ab", bytes: 2_000_000, nodes: 1 };
  expect(baseModelNote(base, 4)).toBe("2.00 MB · held by 1 of 4 nodes");
  expect(baseModelNote({ ...base, bytes: null }, 1)).toBe("not uploaded, so each node must hold it · held by 1 of 1 node");
  expect(baseModelNote(base, 0)).toBe("2.00 MB");
});
