import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Fragment, useEffect } from "react";
import { acknowledgeAlert } from "../api/commands";
import { sessionQuery } from "../queries/session";
import { alertsQuery } from "../queries/alerts";
import { queryKeys } from "../api/queryKeys";
import type { Alert } from "../api/types";
import { escapeHidden } from "../format/text";
import { useFollow } from "../live/LiveProvider";
import { mergeAlerts } from "../live/merge";
import { jobPath, Link, useChoiceParam } from "../router/router";
import { Icon } from "../ui/Icon";
import { ErrorMessage } from "../ui/ErrorMessage";
import { QueryStatus } from "../ui/QueryStatus";
import { ALERT_KINDS } from "./alerts";
import { Timestamp } from "../ui/Timestamp";
import "../styles/alerts.css";

const SHOW = ["all", "active"] as const;

/** Page of active and cleared alerts. */
export function AlertsPage() {
  useFollow(null);
  useEffect(() => void (document.title = "Alerts · shoal"), []);
  const query = useQuery(alertsQuery);
  const { data } = query;
  const { data: role } = useQuery(sessionQuery);
  const [show, setShow] = useChoiceParam("show", SHOW);
  const found = (data ?? []).filter((alert) => show === "all" || alert.cleared_at === null);
  return (
    <article>
      <header className="section-head alerts-head">
        <h1>Alerts</h1>
        <label>
          <input
            type="checkbox"
            checked={show === "active"}
            onChange={(event) => setShow(event.target.checked ? "active" : "all")}
          />{" "}
          active only
        </label>
      </header>
      {data === undefined && <QueryStatus query={query} />}
      {data !== undefined && found.length === 0 && <p className="panel nothing">No alerts</p>}
      {found.length > 0 && (
        <ol className="panel alert-list" data-testid="alerts">
          {found.map((alert) => (
            <Entry key={alert.id} alert={alert} canAcknowledge={role === "operator"} />
          ))}
        </ol>
      )}
    </article>
  );
}

function Entry({ alert, canAcknowledge }: { alert: Alert; canAcknowledge: boolean }) {
  const client = useQueryClient();
  const act = useMutation({
    mutationFn: () => acknowledgeAlert(alert.id),
    onSuccess: (after) =>
      client.setQueryData<Alert[]>(queryKeys.alerts, (known) =>
        known === undefined ? known : mergeAlerts(known, { type: "alert", job: after.job, data: after }),
      ),
  });
  const { text, icon } = ALERT_KINDS[alert.kind];
  return (
    <li className="alert" data-active={alert.cleared_at === null || undefined}>
      <span className="alert-kind">
        <Icon name={alert.cleared_at === null ? icon : "done"} /> {text}
      </span>
      <span className="alert-text">
        <bdi>{escapeHidden(alert.text)}</bdi>
        {(alert.jobs?.length ? alert.jobs : [alert.job]).filter(Boolean).map((job) => (
          <Fragment key={job}>
            {" "}
            <Link href={jobPath(job)}>{job}</Link>
          </Fragment>
        ))}
      </span>
      <span className="alert-when">
        <Timestamp at={alert.raised_at} />
        {alert.cleared_at === null ? (
          " · active"
        ) : (
          <>
            {" "}
            · cleared <Timestamp at={alert.cleared_at} />
          </>
        )}
        {alert.acknowledged_at !== null && (
          <>
            {" "}
            · acknowledged <Timestamp at={alert.acknowledged_at} />
          </>
        )}
      </span>
      {canAcknowledge && alert.acknowledged_at === null && (
        <button
          type="button"
          className="quiet-button"
          data-testid="acknowledge"
          disabled={act.isPending}
          onClick={() => act.mutate()}
        >
          Acknowledge
        </button>
      )}
      {act.error !== null && <ErrorMessage error={act.error} />}
    </li>
  );
}
