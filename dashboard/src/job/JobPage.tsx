import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { ApiError } from "../api/client";
import { chartVersionsQuery, jobQuery, nodesQuery, notesQuery } from "../api/queries";
import type { Job, JobNode, Version } from "../api/types";
import { TrafficChart } from "../charts/TrafficChart";
import { DriftPanel } from "../drift/DriftPanel";
import { latest } from "../format/metric";
import { percent } from "../format/number";
import { visible } from "../format/text";
import { isDynamic, unitOf } from "../format/unit";
import { hasEnded } from "../jobs/order";
import { useFollow } from "../live/LiveProvider";
import { PeersPanel } from "../peers/PeersPanel";
import { Link, useChoice } from "../router";
import { Problem } from "../ui/Problem";
import { State } from "../ui/State";
import { Tabs } from "../ui/Tabs";
import { Configuration } from "./Configuration";
import { Controls } from "./Controls";
import { Decisions } from "./Decisions";
import { Headline } from "./Headline";
import { MetricCharts } from "./MetricCharts";
import { ModeMark, Moves } from "./Moves";
import { NodesTable } from "./NodesTable";
import "../styles/job.css";

const NONE: never[] = [];
const VIEWS = ["overview", "configuration"] as const;
const TABS = [
  { id: "overview", text: "Overview" },
  { id: "configuration", text: "Configuration" },
] as const satisfies readonly { id: (typeof VIEWS)[number]; text: string }[];

export function JobPage({ name }: { name: string }) {
  useFollow(name);
  const { data: job, error } = useQuery(jobQuery(name));
  const { data: versions = NONE } = useQuery(chartVersionsQuery(name));
  const { data: nodes = NONE } = useQuery(nodesQuery(name));
  const [tab, setTab] = useChoice("view", VIEWS);
  useTitle(job, versions);
  if (job === undefined) {
    return (
      <section>
        <Crumbs />
        {error ? <Missing name={name} error={error} /> : <p className="loading">Asking the coordinator …</p>}
      </section>
    );
  }
  return (
    <article className="job">
      <Crumbs />
      <header className="job-head">
        <div className="job-title">
          <h1>
            <bdi>{visible(job.title || job.name)}</bdi>
          </h1>
          <State state={job.state} testId="job-state" />
          <ModeMark job={job} />
        </div>
        <p className="sub">
          {job.name} · {visible(job.algorithm)} · <bdi>{visible(job.schedule)}</bdi>
          {job.state_why && (
            <>
              {" "}
              · <bdi>{visible(job.state_why)}</bdi>
            </>
          )}
        </p>
        <Controls job={job} />
      </header>
      <Headline job={job} versions={versions} nodes={nodes} />
      <Tabs label="Views of the job" tabs={TABS} chosen={tab} onChoose={setTab} />
      <div className="tab-panel" role="tabpanel" id="tab-panel" aria-labelledby={`tab-${tab}`}>
        {tab === "overview" && <Overview job={job} versions={versions} nodes={nodes} />}
        {tab === "configuration" && <Configuration spec={job.spec} />}
      </div>
    </article>
  );
}

/** How the run goes: its charts, its decisions, its nodes. */
function Overview({ job, versions, nodes }: { job: Job; versions: Version[]; nodes: JobNode[] }) {
  const { data: notes = NONE } = useQuery(notesQuery(job.name));
  return (
    <>
      <div className="job-body">
        <div className="job-charts">
          <Moves job={job} />
          <MetricCharts versions={versions} unit={unitOf(job)} />
          {isDynamic(job) && <DriftPanel job={job} versions={versions} nodes={nodes} />}
          <PeersPanel job={job} nodes={nodes} />
          <div className="panel">
            <TrafficChart versions={versions} unit={unitOf(job)} up={job.up_bytes} down={job.down_bytes} />
          </div>
        </div>
        <Decisions notes={notes} />
      </div>
      <NodesTable nodes={nodes} dynamic={isDynamic(job)} ended={hasEnded(job)} />
    </>
  );
}

function Crumbs() {
  return (
    <nav className="crumbs" aria-label="Where you are">
      <Link href="/">Jobs</Link>
    </nav>
  );
}

function Missing({ name, error }: { name: string; error: Error }) {
  const unknown = error instanceof ApiError && error.status === 404;
  return (
    <>
      <h1>{unknown ? "No such job" : <bdi>{visible(name)}</bdi>}</h1>
      <Problem error={error} />
    </>
  );
}

/** The tab's title tells the run's progress while another tab is in front. */
function useTitle(job: Job | undefined, versions: Version[]): void {
  const accuracy = latest("accuracy", versions);
  const title =
    job === undefined
      ? "shoal"
      : [job.versions === null ? percent(job.progress) : `${job.version}/${job.versions}`, accuracy && percent(accuracy.value), job.name, "shoal"]
          .filter(Boolean)
          .join(" · ");
  useEffect(() => void (document.title = title), [title]);
}
