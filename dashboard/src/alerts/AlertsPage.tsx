import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Fragment, useEffect } from "react";
import { acknowledge } from "../api/commands";
import { alertsQuery, keys, sessionQuery } from "../api/queries";
import type { Alert } from "../api/types";
import { visible } from "../format/text";
import { useFollow } from "../live/LiveProvider";
import { mergeAlerts } from "../live/merge";
import { jobPath, Link, useChoice } from "../router";
import { Icon } from "../ui/Icon";
import { Problem } from "../ui/Problem";
import { Unanswered } from "../ui/Unanswered";
import { KINDS } from "./alerts";
import { Moment } from "../ui/Moment";
import "../styles/alerts.css";

const SHOW = ["all", "standing"] as const;

/** What operators were told of: what stands, and what is over. */
export function AlertsPage() {
  useFollow(null);
  useEffect(() => void (document.title = "Alerts · shoal"), []);
  const question = useQuery(alertsQuery);
  const { data } = question;
  const { data: role } = useQuery(sessionQuery);
  const [show, setShow] = useChoice("show", SHOW);
  const found = (data ?? []).filter((alert) => show === "all" || alert.cleared_at === null);
  return (
    <article>
      <header className="section-head alerts-head">
        <h1>Alerts</h1>
        <label>
          <input
            type="checkbox"
            checked={show === "standing"}
            onChange={(event) => setShow(event.target.checked ? "standing" : "all")}
          />{" "}
          ongoing only
        </label>
      </header>
      {data === undefined && <Unanswered question={question} />}
      {data !== undefined && found.length === 0 && <p className="panel nothing">No alerts: nothing has gone wrong so far.</p>}
      {found.length > 0 && (
        <ol className="panel alert-list" data-testid="alerts">
          {found.map((alert) => (
            <Entry key={alert.id} alert={alert} may={role === "operator"} />
          ))}
        </ol>
      )}
    </article>
  );
}

function Entry({ alert, may }: { alert: Alert; may: boolean }) {
  const client = useQueryClient();
  const act = useMutation({
    mutationFn: () => acknowledge(alert.id),
    onSuccess: (after) =>
      client.setQueryData<Alert[]>(keys.alerts, (known) =>
        known === undefined ? known : mergeAlerts(known, { kind: "alert", job: after.job, alert: after }),
      ),
  });
  const { text, icon } = KINDS[alert.kind];
  return (
    <li className="alert" data-standing={alert.cleared_at === null || undefined}>
      <span className="alert-kind">
        <Icon name={alert.cleared_at === null ? icon : "done"} /> {text}
      </span>
      <span className="alert-text">
        <bdi>{visible(alert.text)}</bdi>
        {(alert.jobs?.length ? alert.jobs : [alert.job]).filter(Boolean).map((job) => (
          <Fragment key={job}>
            {" "}
            <Link href={jobPath(job)}>{job}</Link>
          </Fragment>
        ))}
      </span>
      <span className="alert-when">
        <Moment at={alert.raised_at} />
        {alert.cleared_at === null ? (
          " · ongoing"
        ) : (
          <>
            {" "}
            · over at <Moment at={alert.cleared_at} />
          </>
        )}
        {alert.seen_at !== null && (
          <>
            {" "}
            · acknowledged at <Moment at={alert.seen_at} />
          </>
        )}
      </span>
      {may && alert.seen_at === null && (
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
      {act.error !== null && <Problem error={act.error} />}
    </li>
  );
}
