import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Suspense, useEffect } from "react";
import { ApiError } from "../api/client";
import { decodeMetrics } from "../api/decode";
import type { NodeDetail, JobEvent, ReportRow } from "../api/types";
import { pickMetric } from "../domain/metrics";
import { formatReportMetric } from "../domain/reportMetrics";
import { formatBytes, formatCount, formatNumber, UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import { formatAgo } from "../format/time";
import { useFollow } from "../live/LiveProvider";
import { jobPath, Link, useChoiceParam } from "../router/router";
import { ErrorBoundary } from "../ui/ErrorBoundary";
import { ErrorMessage } from "../ui/ErrorMessage";
import { Icon } from "../ui/Icon";
import { KeyValueList } from "../ui/KeyValueList";
import { lazyComponent } from "../ui/lazyComponent";
import { Loading, QueryStatus } from "../ui/QueryStatus";
import { StateBadge } from "../ui/StateBadge";
import { Table, type Column } from "../ui/Table";
import { Tabs } from "../ui/Tabs";
import { Timestamp } from "../ui/Timestamp";
import { AvailabilityBadge, AvailabilityButtons } from "./AvailabilityButtons";
import { nodeFailuresQuery, nodeQuery, reportsQuery } from "./queries";
import { SystemPanel } from "./SystemPanel";
import "../styles/job.css";
import "../styles/nodes.css";

const FailureList = lazyComponent(async () => (await import("../failures/FailureList")).FailureList);
const LogView = lazyComponent(async () => (await import("../logs/LogView")).LogView);

const VIEWS = ["overview", "failures", "logs"] as const;
const TABS = [
  { id: "overview", text: "Overview" },
  { id: "failures", text: "Failures" },
  { id: "logs", text: "Logs" },
] as const;

/** Page of one node. */
export function NodePage({ name }: { name: string }) {
  useFollow(null);
  const { data: node, error, refetch } = useQuery(nodeQuery(name));
  const [view, setView] = useChoiceParam("view", VIEWS, true);
  useEffect(() => void (document.title = `${name} · shoal`), [name]);
  return (
    <article className="node-page">
      <nav className="crumbs" aria-label="Breadcrumb">
        <Link href="/nodes">Nodes</Link>
      </nav>
      {node === undefined ? (
        <>
          <h1>{error instanceof ApiError && error.status === 404 ? "Node not found" : <bdi>{escapeHidden(name)}</bdi>}</h1>
          {error ? <ErrorMessage error={error} onRetry={() => void refetch()} /> : <Loading lines={6} />}
        </>
      ) : (
        <>
          <Header node={node} />
          <Tabs label="Node views" tabs={TABS} chosen={view} onChoose={setView} />
          <div className="tab-panel" role="tabpanel" id="tab-panel" aria-labelledby={`tab-${view}`}>
            <ErrorBoundary key={view} part>
              <Suspense fallback={<Loading />}>
                {view === "overview" && <Overview node={node} />}
                {view === "failures" && <Failures node={name} />}
                {view === "logs" && <LogView node={name} />}
              </Suspense>
            </ErrorBoundary>
          </div>
        </>
      )}
    </article>
  );
}

function Header({ node }: { node: NodeDetail }) {
  return (
    <>
      <header className="job-title">
        <h1>
          <bdi>{escapeHidden(node.name)}</bdi>
        </h1>
        <StateBadge state={node.state} testId="node-state" />
        <AvailabilityBadge availability={node.availability} explained />
        <AvailabilityButtons node={node.name} availability={node.availability} />
      </header>
      <p className="sub">
        joined <Timestamp at={node.joined_at} /> · last seen{" "}
        {node.last_seen_s === null ? "before the coordinator started" : formatAgo(node.last_seen_s)} ·{" "}
        <span className="nowrap">
          <Icon name="up" /> {formatBytes(node.up_bytes)} <Icon name="down" /> {formatBytes(node.down_bytes)}
        </span>
      </p>
      {node.last_error !== null && (
        <p className="node-error">
          <Icon name="warning" /> <bdi>{escapeHidden(node.last_error)}</bdi>
        </p>
      )}
    </>
  );
}

function Overview({ node }: { node: NodeDetail }) {
  return (
    <>
      <JobsTable node={node} />
      <SystemPanel node={node.name} />
      <div className="node-columns">
        <ReportsTable name={node.name} />
        <div>
          <NodeInfo node={node} />
          <ConnectionHistory events={node.history} />
        </div>
      </div>
    </>
  );
}

function Failures({ node }: { node: string }) {
  const query = useQuery(nodeFailuresQuery(node));
  if (query.data === undefined) return <QueryStatus query={query} />;
  return <FailureList failures={query.data} by="job" />;
}

type Participation = NodeDetail["parts"][number];

const JOB_COLUMNS: Column<Participation>[] = [
  {
    title: "Job",
    cell: ({ job, is_present, excluded_text }) => (
      <>
        <Link href={jobPath(job)}>{escapeHidden(job)}</Link> {is_present && <span className="badge part">participating</span>}
        {excluded_text && <span className="sub">excluded: {escapeHidden(excluded_text)}</span>}
      </>
    ),
  },
  { title: "Reports", term: "report", numeric: true, cell: ({ reports }) => formatCount(reports) },
  {
    title: "Last report",
    numeric: true,
    cell: ({ reported_at }) => (reported_at === null ? UNKNOWN : <Timestamp at={reported_at} />),
  },
  { title: "Up", numeric: true, cell: ({ up_bytes }) => formatBytes(up_bytes) },
  { title: "Down", numeric: true, cell: ({ down_bytes }) => formatBytes(down_bytes) },
  { title: "Failures", numeric: true, isBad: ({ failures }) => failures > 0, cell: ({ failures }) => formatCount(failures) },
];

function JobsTable({ node }: { node: NodeDetail }) {
  return (
    <section aria-label="Jobs">
      <header className="section-head">
        <h2>Jobs</h2>
      </header>
      <div className="panel">
        <Table
          className="table-wide"
          columns={JOB_COLUMNS}
          rows={node.parts}
          rowKey={({ job }) => job}
          empty="No jobs yet"
          scroll={{}}
          testId="node-jobs"
        />
      </div>
    </section>
  );
}

const lossOf = (row: ReportRow): number | undefined => {
  const metrics = decodeMetrics(row.metrics);
  return metrics["train/loss"] ?? pickMetric("loss", metrics);
};

const REPORT_COLUMNS: Column<ReportRow>[] = [
  { title: "Time", rowHeader: false, cell: ({ at }) => <Timestamp at={at} /> },
  {
    title: "Job",
    cell: ({ job, node }) => (
      <Link href={`${jobPath(job)}?view=clients&client=${encodeURIComponent(node)}`}>{escapeHidden(job)}</Link>
    ),
  },
  { title: "Version", numeric: true, cell: ({ round, version }) => round ?? version },
  {
    title: "Loss",
    numeric: true,
    isBad: (row) => !Number.isFinite(lossOf(row) ?? 0),
    cell: (row) => formatNumber(lossOf(row)),
  },
  {
    title: "Accuracy",
    numeric: true,
    cell: (row) => formatReportMetric("eval/accuracy", pickMetric("accuracy", decodeMetrics(row.metrics))),
  },
  { title: "Duration", numeric: true, cell: ({ seconds }) => formatReportMetric("seconds", seconds) },
  { title: "Training", numeric: true, cell: ({ phases }) => formatReportMetric("train_s", phases.train_s) },
  { title: "Staleness", term: "staleness", numeric: true, cell: ({ staleness }) => formatCount(staleness) },
];

function ReportsTable({ name }: { name: string }) {
  const query = useInfiniteQuery(reportsQuery(name));
  const { data, hasNextPage, fetchNextPage, isFetchingNextPage } = query;
  return (
    <section aria-label="Reports">
      <header className="section-head">
        <h2>Reports</h2>
      </header>
      <div className="panel">
        <Table
          className="table-wide"
          columns={REPORT_COLUMNS}
          rows={data?.pages.flatMap(({ reports }) => reports) ?? []}
          rowKey={({ id }) => id}
          query={query}
          empty="No accepted reports yet"
          scroll={{ className: "node-reports", label: "Reports, newest first" }}
          testId="node-reports"
        />
        {hasNextPage && (
          <button type="button" className="quiet-button" disabled={isFetchingNextPage} onClick={() => void fetchNextPage()}>
            Show older
          </button>
        )}
      </div>
    </section>
  );
}

function NodeInfo({ node }: { node: NodeDetail }) {
  return (
    <section aria-label="Node info" data-testid="node-info">
      <header className="section-head">
        <h2>Node info</h2>
      </header>
      {Object.keys(node.info).length === 0 ? (
        <p className="panel nothing">No info</p>
      ) : (
        <KeyValueList values={node.info} className="node-info" />
      )}
    </section>
  );
}

function ConnectionHistory({ events }: { events: (JobEvent & { job: string })[] }) {
  return (
    <section aria-label="Connection history" data-testid="node-history">
      <header className="section-head">
        <h2>Connection history</h2>
      </header>
      {events.length === 0 && <p className="panel nothing">No events yet</p>}
      <ol className="panel node-history" hidden={events.length === 0}>
        {events.map((event) => (
          <li key={event.id}>
            <Icon name={event.kind} />
            <span>
              <bdi>{escapeHidden(event.text)}</bdi> <small className="faint">{escapeHidden(event.job)}</small>
            </span>
            <Timestamp at={event.at} />
          </li>
        ))}
      </ol>
    </section>
  );
}
