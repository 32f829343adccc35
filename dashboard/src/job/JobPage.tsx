import { useQuery } from "@tanstack/react-query";
import { Suspense, useEffect, useRef } from "react";
import { ApiError } from "../api/client";
import { chartVersionsQuery, jobQuery, jobNodesQuery } from "../queries/jobs";
import type { Job, Version } from "../api/types";
import { baseModelNote, hasEnded } from "../domain/job";
import { latestMetric } from "../domain/metrics";
import { allowsGossip } from "../domain/modes";
import { formatPercent } from "../format/number";
import { escapeHidden } from "../format/text";
import { useFollow } from "../live/LiveProvider";
import { Link, useChoiceParam } from "../router/router";
import { ErrorBoundary } from "../ui/ErrorBoundary";
import { ErrorMessage } from "../ui/ErrorMessage";
import { StateBadge } from "../ui/StateBadge";
import { Tabs } from "../ui/Tabs";
import { Term } from "../ui/Term";
import { Loading } from "../ui/QueryStatus";
import { JobActions } from "./JobActions";
import { JobStats } from "./JobStats";
import { RestoreNotice } from "./ModeHistory";
import { ModeBadge } from "../ui/ModeBadge";
import { TagList } from "../ui/TagList";
import { TABS, VIEWS } from "./tabs";
import "../styles/job.css";

const NONE: never[] = [];

/** Page of one job. */
export function JobPage({ name }: { name: string }) {
  const { data: job, error, refetch } = useQuery(jobQuery(name));
  // A missing job cannot be followed; this does not change while it is fetched again.
  const missing = useRef(false);
  if (isMissing(error)) missing.current = true;
  else if (job !== undefined) missing.current = false;
  useFollow(missing.current ? null : name);
  const queries = { versions: useQuery(chartVersionsQuery(name)), nodes: useQuery(jobNodesQuery(name)) };
  const { data: versions = NONE } = queries.versions;
  const { data: nodes = NONE } = queries.nodes;
  const [tab, setTab] = useChoiceParam("view", VIEWS, true);
  const { View } = TABS.find(({ id }) => id === tab) ?? TABS[0];
  useTitle(job, versions);
  if (job === undefined) {
    return (
      <section>
        <Crumbs />
        {error ? <Missing name={name} error={error} onRetry={() => void refetch()} /> : <Loading lines={6} />}
      </section>
    );
  }
  return (
    <article className="job">
      <Crumbs />
      <header className="job-head">
        <div className="job-names">
          <div className="job-title">
            <h1>
              <bdi>{escapeHidden(job.title || job.name)}</bdi>
            </h1>
            <StateBadge state={job.state} idle={job.idle} testId="job-state" />
            {allowsGossip(job) && !hasEnded(job) && <ModeBadge mode={job.mode} testId="job-mode" />}
          </div>
          {job.headline && (
            <p className={job.idle ? "job-headline idle" : "job-headline"} data-testid="headline">
              <bdi>{escapeHidden(job.headline)}</bdi>
            </p>
          )}
          <p className="sub">
            {job.name} · {escapeHidden(job.algorithm)} · <bdi>{escapeHidden(job.schedule)}</bdi>
            {job.state_why && !job.headline.includes(job.state_why) && (
              <>
                {" "}
                · {job.idle && "waiting: "}
                <bdi data-testid="state-why">{escapeHidden(job.state_why)}</bdi>
              </>
            )}
          </p>
          {job.base_model && (
            <p className="sub" data-testid="base-model">
              <Term of="base model">base model</Term> <code title={job.base_model.digest}>{job.base_model.digest.slice(0, 12)}</code> ·{" "}
              {baseModelNote(job.base_model, job.members)}
            </p>
          )}
          <TagList tags={job.tags} />
        </div>
        <JobActions job={job} />
      </header>
      <RestoreNotice job={job} />
      <JobStats job={job} versions={versions} nodes={nodes} isLoaded={queries.versions.data !== undefined} />
      <Tabs label="Job views" tabs={TABS.filter(({ id, isFor }) => id === tab || (isFor?.(versions) ?? true))} chosen={tab} onChoose={setTab} />
      <div className="tab-panel" role="tabpanel" id="tab-panel" aria-labelledby={`tab-${tab}`}>
        <ErrorBoundary key={tab} part>
          <Suspense fallback={<Loading lines={6} />}>
            <View job={job} versions={versions} nodes={nodes} queries={queries} />
          </Suspense>
        </ErrorBoundary>
      </div>
    </article>
  );
}

const isMissing = (error: Error | null): boolean => error instanceof ApiError && error.status === 404;

function Crumbs() {
  return (
    <nav className="crumbs" aria-label="Breadcrumb">
      <Link href="/">Jobs</Link>
    </nav>
  );
}

function Missing({ name, error, onRetry }: { name: string; error: Error; onRetry: () => void }) {
  return (
    <>
      <h1>{isMissing(error) ? "Job not found" : <bdi>{escapeHidden(name)}</bdi>}</h1>
      <ErrorMessage error={error} {...(isMissing(error) ? {} : { onRetry })} />
    </>
  );
}

/** Show the progress in the browser tab's title. */
function useTitle(job: Job | undefined, versions: Version[]): void {
  const accuracy = latestMetric("accuracy", versions);
  const title =
    job === undefined
      ? "shoal"
      : [job.versions === null ? formatPercent(job.progress) : `${job.version}/${job.versions}`, accuracy && formatPercent(accuracy.value), job.name, "shoal"]
          .filter(Boolean)
          .join(" · ");
  useEffect(() => void (document.title = title), [title]);
}
