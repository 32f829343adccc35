/** Alerts as people read them. */
import type { Alert } from "../api/types";
import type { IconName } from "../ui/Icon";

export const KINDS: Record<Alert["kind"], { text: string; icon: IconName }> = {
  "node-lost": { text: "Node lost", icon: "gone" },
  "quorum-missed": { text: "Quorum missed", icon: "apart" },
  diverged: { text: "Diverged", icon: "failed" },
  "no-progress": { text: "No progress", icon: "stale" },
  "node-limited": { text: "Node limited", icon: "failed" },
  "nodes-set-aside": { text: "All nodes set aside", icon: "failed" },
  "model-differs": { text: "Another model", icon: "apart" },
  "disk-low": { text: "Disk low", icon: "server" },
};

/** What an operator should look at now: it is not over, and nobody has said that he knows. */
export const pressing = (alerts: readonly Alert[]): Alert[] =>
  alerts.filter(({ cleared_at, seen_at }) => cleared_at === null && seen_at === null);

/** In a few words: the newest of them, and how many more there are. */
export function headline(alerts: readonly Alert[]): string {
  const [first, ...others] = alerts;
  if (first === undefined) return "";
  const about = first.job === "" ? "" : ` (${first.job})`;
  return `${KINDS[first.kind].text}: ${first.text}${about}${others.length > 0 ? ` – and ${others.length} more` : ""}`;
}
