import { useQuery } from "@tanstack/react-query";
import { memo, useDeferredValue, useEffect, useMemo, useRef } from "react";
import { fleetQuery, sessionQuery } from "../api/queries";
import type { FleetNode } from "../api/types";
import { bytes, count, plural, UNKNOWN } from "../format/number";
import { visible } from "../format/text";
import { ago } from "../format/time";
import { capital } from "../format/unit";
import { useFollow } from "../live/LiveProvider";
import { jobPath, Link, useChoice, useText } from "../router";
import { Icon } from "../ui/Icon";
import { Room } from "../ui/Room";
import { useRows } from "../ui/useRows";
import { State } from "../ui/State";
import { AvailabilityBadge } from "./AvailabilityButtons";
import { NodeName } from "./NodeName";
import { chosen, counts, SORTS, STATES, told, type Shown, type Sort } from "./order";
import { Unanswered } from "../ui/Unanswered";
import "../styles/job.css";
import "../styles/nodes.css";

const NONE: FleetNode[] = [];
const COLUMNS: [sort: Sort | null, title: string, className?: string][] = [
  ["name", "Node"],
  ["state", "State"],
  [null, "Jobs"],
  ["reports", "Reports", "num"],
  ["up", "Up", "num"],
  ["down", "Down", "num"],
  ["failures", "Failures", "num"],
  ["seen", "Last seen", "num"],
];

/** Every node that was ever admitted and not removed. */
export function NodesPage() {
  useFollow(null);
  const question = useQuery(fleetQuery);
  const { data } = question;
  const { data: role } = useQuery(sessionQuery);
  const nodes = data ?? NONE;
  const [text, setText] = useText("q");
  const [state, setState] = useChoice<Shown>("state", STATES);
  const [sort, setSort] = useChoice<Sort>("sort", SORTS);
  const wanted = useDeferredValue(text);
  const shown = useMemo(() => chosen(nodes, wanted, state, sort), [nodes, wanted, state, sort]);
  const body = useRef<HTMLTableSectionElement>(null);
  const rows = useRows(shown.length, body);
  const numbers = useMemo(() => counts(nodes), [nodes]);
  useEffect(() => void (document.title = "Nodes · shoal"), []);
  return (
    <section>
      <header className="page-head">
        <h1>Nodes</h1>
        {data && <p className="summary">{plural(shown.length, "node")}{shown.length < nodes.length && ` of ${count(nodes.length)}`}</p>}
        {role === "operator" && (
          <Link href="/join" className="button page-act" data-testid="join">
            <Icon name="plus" /> Join a node
          </Link>
        )}
      </header>
      {data === undefined && <Unanswered question={question} lines={6} />}
      {data !== undefined && (
        <>
          <div className="filters">
            <input
              type="search"
              value={text}
              placeholder="Name, job, tag, release …"
              aria-label="Find nodes"
              data-testid="find-nodes"
              onChange={(event) => setText(event.target.value)}
            />
            <div className="chips" role="radiogroup" aria-label="State">
              {STATES.map((option) => (
                <label key={option}>
                  <input
                    type="radio"
                    name="state"
                    className="visually-hidden"
                    checked={state === option}
                    onChange={() => setState(option)}
                  />
                  <span>
                    {capital(option)} <small>{count(numbers[option])}</small>
                  </span>
                </label>
              ))}
            </div>
          </div>
          <div className="panel">
            {shown.length === 0 ? (
              <p className="nothing">
                {nodes.length > 0 ? "No node fits." : "No node has joined yet. A node joins with "}
                {nodes.length === 0 && <code>shoal join URL --token …</code>}
              </p>
            ) : (
              <div className="table-scroll">
                <table className="nodes-table" role="table" aria-rowcount={shown.length + 1} data-testid="fleet-table">
                  <thead role="rowgroup">
                    <tr role="row">
                      {COLUMNS.map(([by, title, className]) => (
                        <th
                          key={title}
                          role="columnheader"
                          scope="col"
                          className={className}
                          aria-sort={by === sort ? (by === "name" || by === "state" ? "ascending" : "descending") : undefined}
                        >
                          {by === null ? (
                            title
                          ) : (
                            <button type="button" className="sort-button" onClick={() => setSort(by)}>
                              {title}
                              {by === sort && <Icon name="sort" />}
                            </button>
                          )}
                        </th>
                      ))}
                    </tr>
                  </thead>
                  <tbody role="rowgroup" ref={body}>
                <Room height={rows.before} />
{shown.slice(rows.from, rows.to).map((node) => (
                      <Row key={node.name} node={node} />
                    ))}
                <Room height={rows.after} />
              </tbody>
                </table>
              </div>
            )}
          </div>
        </>
      )}
    </section>
  );
}

const Row = memo(function Row({ node }: { node: FleetNode }) {
  return (
    <tr role="row" data-testid={`fleet-row-${node.name}`}>
      <NodeName name={node.name}>
        <bdi>{told(node).map(visible).join(" · ")}</bdi>
      </NodeName>
      <td role="cell" className="node-cell-state">
        <State state={node.state} /> <AvailabilityBadge availability={node.availability} />
      </td>
      <td role="cell" data-label="Jobs">
        {node.jobs.length === 0 ? <span className="faint">{UNKNOWN}</span> : <JobLinks jobs={node.jobs} />}
      </td>
      <td role="cell" className="num" data-label="Reports">
        {count(node.reports)}
      </td>
      <td role="cell" className="num" data-label="Up">
        {bytes(node.up_bytes)}
      </td>
      <td role="cell" className="num" data-label="Down">
        {bytes(node.down_bytes)}
      </td>
      <td role="cell" className={node.failures > 0 ? "num bad" : "num"} data-label="Failures">
        {count(node.failures)}
      </td>
      <td role="cell" className="num" data-label="Last seen">
        {node.last_seen_s === null ? UNKNOWN : ago(node.last_seen_s)}
      </td>
    </tr>
  );
});

const JOBS_SHOWN = 3;

function JobLinks({ jobs }: { jobs: string[] }) {
  return (
    <span className="job-links">
      {jobs.slice(0, JOBS_SHOWN).map((job) => (
        <Link key={job} href={jobPath(job)}>
          {visible(job)}
        </Link>
      ))}
      {jobs.length > JOBS_SHOWN && <span className="faint">and {count(jobs.length - JOBS_SHOWN)} more</span>}
    </span>
  );
}
