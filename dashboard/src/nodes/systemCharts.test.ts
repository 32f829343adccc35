import { expect, test } from "vitest";
import { linePath, latestValue, systemCharts, type SystemHistory } from "./systemCharts";

const history = (series: SystemHistory["series"]): SystemHistory => ({ node: "n0", at: [], series });

test("only what was measured has a chart", () => {
  const charts = systemCharts(history({ cpu: [0.5], gpu: null, memory_bytes: [2e9], memory_total_bytes: [8e9] }));
  expect(charts.map(({ title }) => title)).toEqual(["CPU use (%)", "Memory used (bytes)"]);
});

test("a part is drawn against its whole, a rate against its greatest value", () => {
  const [memory, sent] = systemCharts(
    history({ memory_bytes: [2e9, 3e9], memory_total_bytes: [8e9, 8e9], sent_bytes_per_s: [10, null, 40] }),
  );
  expect([memory?.top, memory?.of]).toEqual([8e9, "of 8.00 GB"]);
  expect([sent?.top, sent?.of]).toEqual([40, ""]);
});

test("a battery says whether it is being charged", () => {
  const [battery] = systemCharts(history({ battery: [0.5], charging: [true] }));
  expect([battery?.top, battery?.of]).toEqual([1, "charging"]);
});

test("nothing but zeros has a chart too", () => {
  expect(systemCharts(history({ sent_bytes_per_s: [0, 0] }))[0]?.top).toBe(1);
});

test("the newest value is the last that was measured", () => {
  expect(latestValue([1, 2, null])).toBe(2);
  expect(latestValue([null])).toBeNull();
});

test("a line follows the time and breaks where nothing was measured", () => {
  expect(linePath([0, 10, 20, 40], [0, 1, null, 2], 2, 100, 10)).toBe("M0.0 10.0L25.0 5.0M100.0 0.0");
});
