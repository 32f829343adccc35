import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useEffect, useMemo } from "react";
import type { FleetNode } from "../api/types";
import { formatBytes, formatCount, plural, UNKNOWN } from "../format/number";
import { capitalize, escapeHidden } from "../format/text";
import { formatAgo } from "../format/time";
import { useFollow } from "../live/LiveProvider";
import { fleetQuery } from "../queries/fleet";
import { sessionQuery } from "../queries/session";
import { jobPath, Link, useChoiceParam, useTextParam } from "../router/router";
import { Icon } from "../ui/Icon";
import { NodeNameCell } from "../ui/NodeNameCell";
import { QueryStatus } from "../ui/QueryStatus";
import { StateBadge } from "../ui/StateBadge";
import { Table, type Column } from "../ui/Table";
import { AvailabilityBadge } from "./AvailabilityButtons";
import { countStates, filterNodes, nodeTags, SORTS, STATES, type Sort, type StateFilter } from "./nodeList";
import "../styles/job.css";
import "../styles/nodes.css";

const NONE: FleetNode[] = [];

/** Page of all enrolled nodes. */
export function NodesPage() {
  useFollow(null);
  const query = useQuery(fleetQuery);
  const { data: role } = useQuery(sessionQuery);
  const nodes = query.data ?? NONE;
  const [text, setText] = useTextParam("q");
  const [state, setState] = useChoiceParam<StateFilter>("state", STATES);
  const [sort, setSort] = useChoiceParam<Sort>("sort", SORTS);
  const deferredText = useDeferredValue(text);
  const shown = useMemo(() => filterNodes(nodes, deferredText, state, sort), [nodes, deferredText, state, sort]);
  const counts = useMemo(() => countStates(nodes), [nodes]);
  useEffect(() => void (document.title = "Nodes · shoal"), []);
  return (
    <section>
      <header className="page-head">
        <h1>Nodes</h1>
        {query.data && (
          <p className="summary">
            {plural(shown.length, "node")}
            {shown.length < nodes.length && ` of ${formatCount(nodes.length)}`}
          </p>
        )}
        {role === "operator" && (
          <Link href="/join" className="button page-act" data-testid="join">
            <Icon name="plus" /> Add a node
          </Link>
        )}
      </header>
      {query.data === undefined ? (
        <QueryStatus query={query} lines={6} />
      ) : (
        <>
          <div className="filters">
            <input
              type="search"
              value={text}
              placeholder="Name, job, tag, release…"
              aria-label="Search nodes"
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
                    {capitalize(option)} <small>{formatCount(counts[option])}</small>
                  </span>
                </label>
              ))}
            </div>
          </div>
          <div className="panel">
            <Table
              layout="cards"
              columns={COLUMNS}
              rows={shown}
              rowKey={({ name }) => name}
              rowAttributes={rowAttributes}
              empty={
                nodes.length > 0 ? (
                  "No matching nodes"
                ) : (
                  <>
                    No node has joined yet. Add one with <code>shoal join URL --token …</code>
                  </>
                )
              }
              sorting={{ by: sort, descending: sort !== "name" && sort !== "state", onChange: (by) => setSort(by as Sort) }}
              scroll={{}}
              virtual
              testId="fleet-table"
            />
          </div>
        </>
      )}
    </section>
  );
}

const rowAttributes = ({ name }: FleetNode) => ({ "data-testid": `fleet-row-${name}` });

const COLUMNS: Column<FleetNode>[] = [
  {
    title: "Node",
    sort: "name",
    className: "node-cell-name",
    cell: (node) => (
      <NodeNameCell name={node.name}>
        <bdi>{nodeTags(node).map(escapeHidden).join(" · ")}</bdi>
      </NodeNameCell>
    ),
  },
  {
    title: "State",
    term: "node state",
    sort: "state",
    className: "node-cell-state",
    unlabeled: true,
    cell: ({ state, availability }) => (
      <>
        <StateBadge state={state} /> <AvailabilityBadge availability={availability} />
      </>
    ),
  },
  {
    title: "Jobs",
    cell: ({ jobs }) => (jobs.length === 0 ? <span className="faint">{UNKNOWN}</span> : <JobLinks jobs={jobs} />),
  },
  { title: "Reports", term: "report", sort: "reports", numeric: true, cell: ({ reports }) => formatCount(reports) },
  { title: "Up", sort: "up", numeric: true, cell: ({ up_bytes }) => formatBytes(up_bytes) },
  { title: "Down", sort: "down", numeric: true, cell: ({ down_bytes }) => formatBytes(down_bytes) },
  {
    title: "Failures",
    sort: "failures",
    numeric: true,
    isBad: ({ failures }) => failures > 0,
    cell: ({ failures }) => formatCount(failures),
  },
  {
    title: "Last seen",
    sort: "seen",
    numeric: true,
    cell: ({ last_seen_s }) => (last_seen_s === null ? UNKNOWN : formatAgo(last_seen_s)),
  },
];

const JOBS_MAX = 3;

function JobLinks({ jobs }: { jobs: string[] }) {
  return (
    <span className="job-links">
      {jobs.slice(0, JOBS_MAX).map((job) => (
        <Link key={job} href={jobPath(job)}>
          {escapeHidden(job)}
        </Link>
      ))}
      {jobs.length > JOBS_MAX && <span className="faint">and {formatCount(jobs.length - JOBS_MAX)} more</span>}
    </span>
  );
}
