import { useMemo } from "react";
import type { Peer } from "../api/types";
import { formatCount } from "../format/number";
import { escapeHidden } from "../format/text";
import { quarantined, refusals } from "./peerStats";
import { Term } from "../ui/Term";

/** Messages that peers have refused, by error code, and the peers in quarantine. */
export function RefusedMessages({ peers }: { peers: Peer[] }) {
  const rows = useMemo(() => refusals(peers), [peers]);
  const inQuarantine = useMemo(() => quarantined(peers), [peers]);
  const max = rows[0]?.count ?? 1;
  return (
    <section className="panel refusals" data-testid="refusals" aria-label="Refused messages">
      <h3>Refused messages</h3>
      {rows.length === 0 ? (
        <p className="hint">None: every message was signed by a member, new, and of this job.</p>
      ) : (
        <ul tabIndex={0} aria-label="Refused messages by code">
          {rows.map(({ code, count, by }) => (
            <li key={code}>
              <code>{escapeHidden(code)}</code>
              <span className="bar" aria-hidden="true">
                <i style={{ width: `${(count / max) * 100}%` }} />
              </span>
              <b className="num">{formatCount(count)}</b>
              <span className="sub">
                by <bdi>{by.map(([name, times]) => `${escapeHidden(name)} (${formatCount(times)})`).join(", ")}</bdi>
              </span>
            </li>
          ))}
        </ul>
      )}
      {inQuarantine.map(([name, by]) => (
        <p key={name} className="hint" data-testid="quarantine">
          <b>
            <bdi>{escapeHidden(name)}</bdi> is in <Term of="quarantine">quarantine</Term>
          </b>{" "}
          at <bdi>{by.map(escapeHidden).join(", ")}</bdi>: three messages were refused for the same reason, so no exchange is
          started with it.
        </p>
      ))}
    </section>
  );
}
