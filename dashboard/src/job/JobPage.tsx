import { useQuery } from "@tanstack/react-query";
import { Suspense, useEffect, useRef } from "react";
import { ApiError } from "../api/client";
import { chartVersionsQuery, jobQuery, nodesQuery } from "../api/queries";
import type { Job, Version } from "../api/types";
import { latest } from "../format/metric";
import { percent } from "../format/number";
import { visible } from "../format/text";
import { useFollow } from "../live/LiveProvider";
import { Link, useChoice } from "../router";
import { ErrorBoundary } from "../ui/ErrorBoundary";
import { Problem } from "../ui/Problem";
import { State } from "../ui/State";
import { Tabs } from "../ui/Tabs";
import { Loading } from "../ui/Unanswered";
import { Controls } from "./Controls";
import { Headline } from "./Headline";
import { ModeMark, Origin } from "./Moves";
import { Tags } from "./Tags";
import { TABS, VIEWS } from "./tabs";
import "../styles/job.css";

const NONE: never[] = [];

export function JobPage({ name }: { name: string }) {
  const { data: job, error, refetch } = useQuery(jobQuery(name));
  // Of a job that is not there nothing could be followed; while it is asked for once more, that stays so.
  const missing = useRef(false);
  if (isMissing(error)) missing.current = true;
  else if (job !== undefined) missing.current = false;
  useFollow(missing.current ? null : name);
  const answers = { versions: useQuery(chartVersionsQuery(name)), nodes: useQuery(nodesQuery(name)) };
  const { data: versions = NONE } = answers.versions;
  const { data: nodes = NONE } = answers.nodes;
  const [tab, setTab] = useChoice("view", VIEWS, true);
  const { View } = TABS.find(({ id }) => id === tab) ?? TABS[0];
  useTitle(job, versions);
  if (job === undefined) {
    return (
      <section>
        <Crumbs />
        {error ? <Missing name={name} error={error} again={() => void refetch()} /> : <Loading lines={6} />}
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
              <bdi>{visible(job.title || job.name)}</bdi>
            </h1>
            <State state={job.state} idle={job.idle} testId="job-state" />
            <ModeMark job={job} />
          </div>
          {job.headline && (
            <p className={job.idle ? "job-headline idle" : "job-headline"} data-testid="headline">
              <bdi>{visible(job.headline)}</bdi>
            </p>
          )}
          <p className="sub">
            {job.name} · {visible(job.algorithm)} · <bdi>{visible(job.schedule)}</bdi>
            {job.state_why && !job.headline.includes(job.state_why) && (
              <>
                {" "}
                · {job.idle && "waits: "}
                <bdi data-testid="state-why">{visible(job.state_why)}</bdi>
              </>
            )}
          </p>
          <Tags tags={job.tags} />
        </div>
        <Controls job={job} />
      </header>
      <Origin job={job} />
      <Headline job={job} versions={versions} nodes={nodes} known={answers.versions.data !== undefined} />
      <Tabs label="Views of the job" tabs={TABS} chosen={tab} onChoose={setTab} />
      <div className="tab-panel" role="tabpanel" id="tab-panel" aria-labelledby={`tab-${tab}`}>
        <ErrorBoundary key={tab} part>
          <Suspense fallback={<Loading lines={6} />}>
            <View job={job} versions={versions} nodes={nodes} answers={answers} />
          </Suspense>
        </ErrorBoundary>
      </div>
    </article>
  );
}

const isMissing = (error: Error | null): boolean => error instanceof ApiError && error.status === 404;

function Crumbs() {
  return (
    <nav className="crumbs" aria-label="Where you are">
      <Link href="/">Jobs</Link>
    </nav>
  );
}

function Missing({ name, error, again }: { name: string; error: Error; again: () => void }) {
  return (
    <>
      <h1>{isMissing(error) ? "No such job" : <bdi>{visible(name)}</bdi>}</h1>
      <Problem error={error} {...(isMissing(error) ? {} : { again })} />
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
