/** Labels and selection of alerts. */
import type { Alert } from "../api/types";
import type { IconName } from "../ui/Icon";

export const ALERT_KINDS: Record<Alert["kind"], { text: string; icon: IconName }> = {
  "node-lost": { text: "Node lost", icon: "gone" },
  "quorum-missed": { text: "Quorum missed", icon: "apart" },
  diverged: { text: "Diverged", icon: "failed" },
  "no-progress": { text: "No progress", icon: "stale" },
  "node-limited": { text: "Node limited", icon: "failed" },
  "nodes-set-aside": { text: "Nodes set aside", icon: "failed" },
  "model-differs": { text: "Model differs", icon: "apart" },
  "disk-low": { text: "Disk low", icon: "server" },
};

/** Return the alerts that are neither cleared nor acknowledged. */
export const activeAlerts = (alerts: readonly Alert[]): Alert[] =>
  alerts.filter(({ cleared_at, acknowledged_at }) => cleared_at === null && acknowledged_at === null);

/** Describe the newest alert and the number of others. */
export function summarizeAlerts(alerts: readonly Alert[]): string {
  const [first, ...others] = alerts;
  if (first === undefined) return "";
  const about = first.job === "" ? "" : ` (${first.job})`;
  return `${ALERT_KINDS[first.kind].text}: ${first.text}${about}${others.length > 0 ? ` and ${others.length} more` : ""}`;
}
