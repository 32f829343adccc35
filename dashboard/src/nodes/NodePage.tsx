import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Suspense, useEffect } from "react";
import { ApiError } from "../api/client";
import { nodeFailuresQuery } from "../api/queries";
import type { NodeDetail, Note, ReportRow } from "../api/types";
import { write } from "../clients/quantity";
import { bytes, count, figure, UNKNOWN } from "../format/number";
import { pick } from "../format/metric";
import { visible } from "../format/text";
import { ago } from "../format/time";
import { reviveMetrics } from "../api/revive";
import { useFollow } from "../live/LiveProvider";
import { jobPath, Link, useChoice } from "../router";
import { ErrorBoundary } from "../ui/ErrorBoundary";
import { Icon } from "../ui/Icon";
import { lazily } from "../ui/lazily";
import { Pairs } from "../ui/Pairs";
import { Problem } from "../ui/Problem";
import { State } from "../ui/State";
import { Tabs } from "../ui/Tabs";
import { AvailabilityBadge, AvailabilityButtons } from "./AvailabilityButtons";
import { nodeQuery, reportsQuery } from "./queries";
import { SystemPanel } from "./SystemPanel";
import { Moment } from "../ui/Moment";
import { Loading, Unanswered } from "../ui/Unanswered";
import "../styles/job.css";
import "../styles/nodes.css";

const FailureList = lazily(async () => (await import("../observe/FailureList")).FailureList);
const LogView = lazily(async () => (await import("../observe/LogView")).LogView);

const VIEWS = ["overview", "failures", "logs"] as const;
const TABS = [
  { id: "overview", text: "Overview" },
  { id: "failures", text: "Failures" },
  { id: "logs", text: "Logs" },
] as const;

/** One node: what it says of itself, what it works in, what it has reported, when it came and went, what it failed at, what it logs. */
export function NodePage({ name }: { name: string }) {
  useFollow(null);
  const { data: node, error, refetch } = useQuery(nodeQuery(name));
  const [view, setView] = useChoice("view", VIEWS, true);
  useEffect(() => void (document.title = `${name} · shoal`), [name]);
  return (
    <article className="node-page">
      <nav className="crumbs" aria-label="Where you are">
        <Link href="/nodes">Nodes</Link>
      </nav>
      {node === undefined ? (
        <>
          <h1>{error instanceof ApiError && error.status === 404 ? "No such node" : <bdi>{visible(name)}</bdi>}</h1>
          {error ? <Problem error={error} again={() => void refetch()} /> : <Loading lines={6} />}
        </>
      ) : (
        <>
          <header className="job-title">
            <h1>
              <bdi>{visible(node.name)}</bdi>
            </h1>
            <State state={node.state} testId="node-state" />
            <AvailabilityBadge availability={node.availability} />
            <AvailabilityButtons node={node.name} availability={node.availability} />
          </header>
          <p className="sub">
            here since <Moment at={node.joined_at} /> · last seen{" "}
            {node.last_seen_s === null ? "before the coordinator started" : ago(node.last_seen_s)} ·{" "}
            <span className="nowrap">
              <Icon name="up" /> {bytes(node.up_bytes)} <Icon name="down" /> {bytes(node.down_bytes)}
            </span>
          </p>
          {node.last_error !== null && (
            <p className="node-error">
              <Icon name="warning" /> <bdi>{visible(node.last_error)}</bdi>
            </p>
          )}
          <Tabs label="Views of the node" tabs={TABS} chosen={view} onChoose={setView} />
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

function Overview({ node }: { node: NodeDetail }) {
  return (
    <>
      <Parts node={node} />
      <SystemPanel node={node.name} />
      <div className="node-columns">
        <Reports name={node.name} />
        <div>
          <Info node={node} />
          <History notes={node.history} />
        </div>
      </div>
    </>
  );
}

function Failures({ node }: { node: string }) {
  const question = useQuery(nodeFailuresQuery(node));
  const { data } = question;
  if (data === undefined) return <Unanswered question={question} />;
  return <FailureList failures={data} by="job" />;
}

function Parts({ node }: { node: NodeDetail }) {
  return (
    <section aria-label="Jobs">
      <header className="section-head">
        <h2>Jobs</h2>
      </header>
      <div className="panel table-scroll">
        {node.parts.length === 0 ? (
          <p className="nothing">It has taken part in no job.</p>
        ) : (
          <table className="data-table wide" data-testid="node-jobs">
            <thead>
              <tr>
                <th scope="col">Job</th>
                {["Reports", "Last report", "Up", "Down", "Failures"].map((title) => (
                  <th key={title} scope="col" className="num">
                    {title}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {node.parts.map((part) => (
                <tr key={part.job}>
                  <th scope="row">
                    <Link href={jobPath(part.job)}>{visible(part.job)}</Link> {part.here && <span className="badge part">takes part</span>}
                    {part.left_out && <span className="sub">takes no part: {visible(part.left_out)}</span>}
                  </th>
                  <td className="num">{count(part.reports)}</td>
                  <td className="num">{part.reported_at === null ? UNKNOWN : <Moment at={part.reported_at} />}</td>
                  <td className="num">{bytes(part.up_bytes)}</td>
                  <td className="num">{bytes(part.down_bytes)}</td>
                  <td className={part.failures > 0 ? "num bad" : "num"}>{count(part.failures)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </div>
    </section>
  );
}

function Reports({ name }: { name: string }) {
  const question = useInfiniteQuery(reportsQuery(name));
  const { data, hasNextPage, fetchNextPage, isFetchingNextPage } = question;
  const rows = data?.pages.flatMap(({ reports }) => reports) ?? [];
  return (
    <section aria-label="Reports">
      <header className="section-head">
        <h2>Reports</h2>
      </header>
      <div className="panel table-scroll node-reports" tabIndex={0} role="region" aria-label="Reports, newest first">
        {data === undefined ? (
          <Unanswered question={question} />
        ) : rows.length === 0 ? (
          <p className="nothing">None of its reports has counted yet.</p>
        ) : (
          <table className="data-table wide" data-testid="node-reports">
            <thead>
              <tr>
                <th scope="col">When</th>
                <th scope="col">Job</th>
                {["Version", "Loss", "Accuracy", "Took", "Trained", "Behind"].map((title) => (
                  <th key={title} scope="col" className="num">
                    {title}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <ReportLine key={row.id} row={row} />
              ))}
            </tbody>
          </table>
        )}
        {hasNextPage && (
          <button type="button" className="quiet-button" disabled={isFetchingNextPage} onClick={() => void fetchNextPage()}>
            Older reports
          </button>
        )}
      </div>
    </section>
  );
}

function ReportLine({ row }: { row: ReportRow }) {
  const metrics = reviveMetrics(row.metrics);
  const loss = metrics["train/loss"] ?? pick("loss", metrics);
  const accuracy = pick("accuracy", metrics);
  return (
    <tr>
      <td>
        <Moment at={row.at} />
      </td>
      <td>
        <Link href={`${jobPath(row.job)}?view=clients&client=${encodeURIComponent(row.node)}`}>{visible(row.job)}</Link>
      </td>
      <td className="num">{row.round ?? row.version}</td>
      <td className={loss !== undefined && !Number.isFinite(loss) ? "num bad" : "num"}>{figure(loss)}</td>
      <td className="num">{write("eval/accuracy", accuracy)}</td>
      <td className="num">{write("seconds", row.seconds)}</td>
      <td className="num">{write("train_s", row.phases.train_s)}</td>
      <td className="num">{count(row.staleness)}</td>
    </tr>
  );
}

/** Its own words: text, whatever they are. */
function Info({ node }: { node: NodeDetail }) {
  return (
    <section aria-label="What it says of itself" data-testid="node-info">
      <header className="section-head">
        <h2>What it says of itself</h2>
      </header>
      {Object.keys(node.info).length === 0 ? (
        <p className="panel nothing">Nothing.</p>
      ) : (
        <Pairs of={node.info} className="node-info" />
      )}
    </section>
  );
}

function History({ notes }: { notes: (Note & { job: string })[] }) {
  return (
    <section aria-label="Came and went" data-testid="node-history">
      <header className="section-head">
        <h2>Came and went</h2>
      </header>
      {notes.length === 0 && <p className="panel nothing">It has not taken part in a job yet.</p>}
      <ol className="panel node-history" hidden={notes.length === 0}>
        {notes.map((note) => (
          <li key={note.id}>
            <Icon name={note.kind} />
            <span>
              <bdi>{visible(note.text)}</bdi> <small className="faint">{visible(note.job)}</small>
            </span>
            <Moment at={note.at} />
          </li>
        ))}
      </ol>
    </section>
  );
}
