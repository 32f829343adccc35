import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { jobsQuery } from "../api/queries";
import type { Job } from "../api/types";
import { useFollow } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { comparePath, Link } from "../router";
import { Problem } from "../ui/Problem";
import { Fleet } from "./Fleet";
import { JobRow } from "./JobRow";
import { countStates, inOrder } from "./order";
import "../styles/jobs.css";

export function JobsPage() {
  useFollow(null);
  const { data: jobs, error } = useQuery(jobsQuery);
  useEffect(() => void (document.title = "Jobs · shoal"), []);
  return (
    <section>
      <header className="page-head">
        <h1>Jobs</h1>
        {jobs && jobs.length > 0 && <Summary jobs={jobs} />}
      </header>
      {jobs === undefined ? (
        error ? (
          <Problem error={error} />
        ) : (
          <p className="loading">Asking the coordinator …</p>
        )
      ) : null}
      {jobs !== undefined && <Fleet jobs={jobs} />}
      {jobs?.length === 0 && <NoJobs />}
      {jobs !== undefined && jobs.length > 0 && <JobsTable jobs={jobs} />}
    </section>
  );
}

function Summary({ jobs }: { jobs: Job[] }) {
  return <p className="summary">{countStates(jobs).map(([state, number]) => `${number} ${state}`).join(" · ")}</p>;
}

function JobsTable({ jobs }: { jobs: Job[] }) {
  const now = useNow();
  const [ticked, setTicked] = useState<string[]>([]);
  const tick = (name: string, on: boolean) =>
    setTicked((names) => (on ? [...names, name] : names.filter((other) => other !== name)));
  return (
    <div className="panel">
      {ticked.length > 0 && (
        <p className="jobs-ticked">
          <Link href={comparePath(ticked)} className="button" data-testid="compare">
            Compare {ticked.length === 1 ? "1 job" : `${ticked.length} jobs`}
          </Link>
        </p>
      )}
      <table className="jobs" role="table">
        <thead role="rowgroup">
          <tr role="row">
            <th role="columnheader" scope="col">
              State
            </th>
            <th role="columnheader" scope="col">
              Job
            </th>
            <th role="columnheader" scope="col">
              Progress
            </th>
            <th role="columnheader" scope="col" className="num">
              Time left
            </th>
            <th role="columnheader" scope="col" className="num">
              Best accuracy
            </th>
            <th role="columnheader" scope="col">
              <span className="visually-hidden">Accuracy so far</span>
            </th>
            <th role="columnheader" scope="col" className="num">
              Bytes up
            </th>
            <th role="columnheader" scope="col" className="num">
              Bytes down
            </th>
          </tr>
        </thead>
        <tbody role="rowgroup">
          {inOrder(jobs).map((job) => (
            <JobRow key={job.name} job={job} now={now} ticked={ticked.includes(job.name)} onTick={tick} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function NoJobs() {
  return (
    <div className="panel nothing">
      <h2>No jobs yet</h2>
      <p>A job appears here as soon as it is submitted:</p>
      <pre>
        <code>shoal run JOB.toml</code>
      </pre>
      <p>Or watch one that brings its own data and nodes:</p>
      <pre>
        <code>shoal demo</code>
      </pre>
    </div>
  );
}
