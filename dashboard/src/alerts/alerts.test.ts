import { expect, test } from "vitest";
import type { Alert } from "../api/types";
import { ALERTS_MAX, mergeAlerts } from "../live/merge";
import { event } from "../test/factories";
import { summarizeAlerts, activeAlerts } from "./alerts";

const alert = (id: number, more: Partial<Alert> = {}): Alert => ({
  id,
  kind: "node-lost",
  job: "digits",
  node: "ada",
  text: "ada has fallen silent",
  raised_at: "2026-01-02T03:04:05.000Z",
  cleared_at: null,
  acknowledged_at: null,
  ...more,
});
const raised = (one: Alert) => event("alert", one, one.job);
const ids = (alerts: Alert[]) => alerts.map(({ id }) => id);

test("alerts stand newest first, and change in their place", () => {
  const known = [alert(5), alert(2)];
  expect(ids(mergeAlerts(known, raised(alert(7))))).toEqual([7, 5, 2]);
  expect(ids(mergeAlerts(known, raised(alert(3))))).toEqual([5, 3, 2]);
  expect(mergeAlerts(known, raised(alert(2, { cleared_at: "now" })))[1]?.cleared_at).toBe("now");
  expect(mergeAlerts(known, event("logs", 3, ""))).toBe(known);
  const full = Array.from({ length: ALERTS_MAX }, (_, index) => alert(2 * ALERTS_MAX - index));
  expect(mergeAlerts(full, raised(alert(1)))).toBe(full);
  expect(mergeAlerts(full, raised(alert(10 ** 6)))).toHaveLength(ALERTS_MAX);
});

test("what is over or known presses nobody", () => {
  const all = [alert(4), alert(3, { acknowledged_at: "then" }), alert(2, { cleared_at: "then" }), alert(1, { job: "" })];
  expect(ids(activeAlerts(all))).toEqual([4, 1]);
  expect(summarizeAlerts(activeAlerts(all))).toBe("Node lost: ada has fallen silent (digits) and 1 more");
  expect(summarizeAlerts([alert(1, { kind: "disk-low", job: "", text: "12 MiB are left" })])).toBe("Disk low: 12 MiB are left");
  expect(summarizeAlerts([])).toBe("");
});
