import { useQuery } from "@tanstack/react-query";
import { alertsQuery } from "../queries/alerts";
import { escapeHidden } from "../format/text";
import { Link } from "../router/router";
import { Icon } from "../ui/Icon";
import { summarizeAlerts, activeAlerts } from "./alerts";
import "../styles/alerts.css";

/** Banner of the active alerts that are not acknowledged, on every page but that of the alerts. */
export function AlertBanner({ path }: { path: string }) {
  const { data = [] } = useQuery(alertsQuery);
  const found = activeAlerts(data);
  if (found.length === 0 || path === "/alerts") return null;
  return (
    <aside className="alert-banner" aria-label="Alerts" aria-live="polite" data-testid="alert-banner">
      <Icon name="warning" />
      <span>
        <bdi>{escapeHidden(summarizeAlerts(found))}</bdi>
      </span>
      <Link href="/alerts">View {found.length === 1 ? "alert" : "alerts"}</Link>
    </aside>
  );
}
