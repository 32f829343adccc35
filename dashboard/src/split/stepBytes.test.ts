import { expect, test } from "vitest";
import { cutText, stepBytes, turnsText, whyState } from "./stepBytes";

const version = (number: number, batches: number) => ({
  number,
  batches,
  nodes: ["a"],
  metrics: {},
  examples: 41,
  up_bytes: 600,
  down_bytes: 300,
});

const node = (name: string, turn_batches: number | null, excluded = "") => ({ name, turn_batches, excluded });

test("a step has its share of the bytes of its round; rounds without steps are left out", () => {
  expect(stepBytes({ versions: [version(1, 6), version(2, 0)] })).toEqual([{ round: 1, up: 100, down: 50 }]);
});

test("the nodes that have a turn, one or several", () => {
  expect(turnsText({ nodes: [node("a", null), node("b", 0), node("c", 4)] })).toBe("b, c");
  expect(turnsText({ nodes: ["a", "b", "c", "d"].map((name) => node(name, 1)) })).toBe("4 nodes");
});

test("a job waits for nodes that are not excluded", () => {
  const job = { state: "waiting", ended: "", nodes: [node("a", null), node("b", null, "failed")], spec: { nodes: 3 } } as const;
  expect(whyState({ ...job, nodes: [...job.nodes] })).toBe("1 of 3 nodes have joined");
  expect(whyState({ ...job, nodes: [], spec: { nodes: 1, parties: ["a", "b"] } })).toBe("0 of 2 nodes have joined");
});

test("the settings of a cut are one text", () => {
  const filters = [{ name: "half" }, { name: "quantize" }];
  expect(cutText({ cut: [2, "head"], labels: "node", filters })).toBe("cut at 2 and head · labels at the node · filters half, quantize");
  expect(cutText({ cut: 3, labels: "coordinator", filters: [] })).toBe("cut at 3 · labels at the coordinator");
  const vertical = { cut: null, parties: ["bank", "shop"], labels: "shop", filters: [] };
  expect(cutText(vertical)).toBe("2 parties · labels at shop");
});
