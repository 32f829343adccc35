import { useMemo } from "react";
import type { Peer } from "../api/types";
import { count } from "../format/number";
import { visible } from "../format/text";
import { quarantined, refusals } from "./tally";

/** What peers have refused of each other, by code, and with whom some begin nothing any more because of it. */
export function Refusals({ peers }: { peers: Peer[] }) {
  const found = useMemo(() => refusals(peers), [peers]);
  const shunned = useMemo(() => quarantined(peers), [peers]);
  const most = found[0]?.count ?? 1;
  return (
    <section className="panel refusals" data-testid="refusals" aria-label="Refused by peers">
      <h3>Refused by peers</h3>
      {found.length === 0 ? (
        <p className="hint">Nothing: every message was signed by a member, new, and of this job.</p>
      ) : (
        <ul tabIndex={0} aria-label="Refusals by code">
          {found.map(({ code, count: number, by }) => (
            <li key={code}>
              <code>{visible(code)}</code>
              <span className="gap-bar" aria-hidden="true">
                <i style={{ width: `${(number / most) * 100}%` }} />
              </span>
              <b className="num">{count(number)}</b>
              <span className="sub">
                by <bdi>{by.map(([name, times]) => `${visible(name)} (${count(times)})`).join(", ")}</bdi>
              </span>
            </li>
          ))}
        </ul>
      )}
      {shunned.map(([name, by]) => (
        <p key={name} className="hint" data-testid="quarantine">
          <b>
            <bdi>{visible(name)}</bdi> is in quarantine
          </b>{" "}
          at <bdi>{by.map(visible).join(", ")}</bdi>: refused three times for one reason, so nothing is begun with it.
        </p>
      ))}
    </section>
  );
}
