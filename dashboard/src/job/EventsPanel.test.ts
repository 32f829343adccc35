import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test } from "vitest";
import { jobEvent } from "../test/factories";
import { GroupRows } from "./EventsPanel";
import { groupEvents } from "./groupEvents";

const elements = (decisions: number): number => {
  const { groups } = groupEvents(
    Array.from({ length: decisions }, (_, index) => jobEvent(index + 1)),
    "all",
  );
  return groups.reduce((sum, group) => sum + (renderToStaticMarkup(createElement(GroupRows, { group })).match(/<\w/g) ?? []).length, 0);
};

test("a folded run of decisions has as many elements after 2,000 decisions as after 20", () => {
  expect(elements(20)).toBeGreaterThan(5);
  expect(elements(2000)).toBe(elements(20));
});
