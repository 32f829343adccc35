import { useQuery } from "@tanstack/react-query";
import { alertsQuery } from "../api/queries";
import { visible } from "../format/text";
import { Link } from "../router";
import { Icon } from "../ui/Icon";
import { headline, pressing } from "./alerts";
import "../styles/alerts.css";

/** On every page but that of the alerts: what nobody has acknowledged yet. */
export function AlertBanner({ path }: { path: string }) {
  const { data = [] } = useQuery(alertsQuery);
  const found = pressing(data);
  if (found.length === 0 || path === "/alerts") return null;
  return (
    <aside className="alert-banner" aria-label="Alerts" aria-live="polite" data-testid="alert-banner">
      <Icon name="warning" />
      <span>
        <bdi>{visible(headline(found))}</bdi>
      </span>
      <Link href="/alerts">Look at {found.length === 1 ? "it" : "them"}</Link>
    </aside>
  );
}
