import { expect, test } from "vitest";
import { node } from "../test/factories";
import { summarizeNodes, secondsSilent, sortNodes } from "./sortNodes";

const names = (nodes: { name: string }[]) => nodes.map((each) => each.name);

test("names are sorted as people count", () => {
  expect(names(sortNodes([node("n10"), node("n2"), node("n1")], "name"))).toEqual(["n1", "n2", "n10"]);
});

test("nodes that take no part come last in every order", () => {
  const nodes = [node("a", { excluded_text: "without the tag ship", reports: 9 }), node("b"), node("c", { reports: 1 })];
  expect(names(sortNodes(nodes, "name"))).toEqual(["b", "c", "a"]);
  expect(names(sortNodes(nodes, "reports"))).toEqual(["c", "b", "a"]);
});

test("the largest comes first, the diverged before it, the unknown last", () => {
  const nodes = [
    node("plain", { metrics: { "eval/loss": 0.2 } }),
    node("unknown"),
    node("high", { metrics: { "eval/loss": 3 } }),
    node("diverged", { metrics: { "eval/loss": NaN } }),
  ];
  expect(names(sortNodes(nodes, "loss"))).toEqual(["diverged", "high", "plain", "unknown"]);
  const traffic = [node("a", { up_bytes: 1, down_bytes: 9 }), node("b", { up_bytes: 5, down_bytes: 2 })];
  expect(names(sortNodes(traffic, "up"))).toEqual(["b", "a"]);
  expect(names(sortNodes(traffic, "down"))).toEqual(["a", "b"]);
  const timed = [node("idle"), node("slow", { seconds: 9 }), node("fast", { seconds: 1 })];
  expect(names(sortNodes(timed, "seconds"))).toEqual(["slow", "fast", "idle"]);
});

test("the longest silent, the most often failed, the busiest come first", () => {
  expect(
    names(
      sortNodes([node("new", { last_seen_at: 50 }), node("never", { last_seen_at: null }), node("old", { last_seen_at: 10 })], "seen"),
    ),
  ).toEqual(["never", "old", "new"]);
  expect(names(sortNodes([node("ok"), node("bad", { failures: 3 })], "failures"))).toEqual(["bad", "ok"]);
  expect(names(sortNodes([node("less", { reports: 1 }), node("more", { reports: 2 })], "reports"))).toEqual([
    "more",
    "less",
  ]);
  expect(
    names(
      sortNodes(
        [node("a", { state: "gone" }), node("b", { state: "idle" }), node("c", { state: "training" })],
        "state",
      ),
    ),
  ).toEqual(["c", "b", "a"]);
});

test("who is gone grows more silent by the second, who is there does not", () => {
  const heard = { last_seen_s: 2, last_seen_at: 10_000 };
  expect(secondsSilent(node("a", { ...heard, state: "gone" }), 52_400)).toBe(42);
  expect(secondsSilent(node("a", { ...heard, state: "stale" }), 52_400)).toBe(42);
  expect(secondsSilent(node("a", { ...heard, state: "training" }), 52_400)).toBe(2);
  expect(secondsSilent(node("a", { last_seen_s: null, last_seen_at: null, state: "gone" }), 52_400)).toBeNull();
});

test("the summary names the states that occur", () => {
  expect(summarizeNodes([node("a", { state: "gone" }), node("b", { state: "training" }), node("c")])).toBe(
    "3 nodes · 1 training · 1 idle · 1 gone",
  );
  expect(summarizeNodes([node("a"), node("b", { excluded_text: "without the tag ship" })])).toBe("1 node · 1 idle · 1 excluded");
});
