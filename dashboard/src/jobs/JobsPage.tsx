import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { jobsQuery, sessionQuery } from "../api/queries";
import type { Job } from "../api/types";
import { visible } from "../format/text";
import { useFollow } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { comparePath, Link, newJobPath, replaceParam, setListed, useList, useParam } from "../router";
import { Icon } from "../ui/Icon";
import { Problem } from "../ui/Problem";
import { Fleet } from "./Fleet";
import { JobRow } from "./JobRow";
import { matching } from "./matching";
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
        <NewJob />
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
      {jobs !== undefined && jobs.length > 0 && <Found jobs={jobs} />}
    </section>
  );
}

/** Operators begin jobs; nobody else sees the way there. */
function NewJob() {
  const { data: role } = useQuery(sessionQuery);
  if (role !== "operator") return null;
  return (
    <Link href={newJobPath()} className="button primary page-act" data-testid="new-job">
      New job
    </Link>
  );
}

function Summary({ jobs }: { jobs: Job[] }) {
  return <p className="summary">{countStates(jobs).map(([state, number]) => `${number} ${state}`).join(" · ")}</p>;
}

/** Those that are looked for. */
function Found({ jobs }: { jobs: Job[] }) {
  const words = useParam("q");
  const tag = useParam("tag");
  const found = matching(jobs, words, tag);
  return (
    <>
      <div className="toolbar jobs-search">
        <input
          type="search"
          id="search"
          aria-label="Search jobs"
          placeholder="Name, title, algorithm or tag"
          value={words}
          onChange={(event) => replaceParam("q", event.target.value)}
        />
        {tag !== "" && (
          <button type="button" className="quiet-button" data-testid="no-tag" onClick={() => replaceParam("tag", "")}>
            <Icon name="tag" /> <bdi>{visible(tag)}</bdi> <Icon name="cross" />
            <span className="visually-hidden">: show all jobs</span>
          </button>
        )}
        <span role="status" className="summary">
          {found.length < jobs.length && `${found.length} of ${jobs.length}`}
        </span>
      </div>
      {found.length === 0 ? <p className="panel nothing">No job is like that.</p> : <JobsTable jobs={found} />}
    </>
  );
}

function JobsTable({ jobs }: { jobs: Job[] }) {
  const now = useNow();
  const ticked = useList("ticked").filter((name) => jobs.some((job) => job.name === name));
  const tick = (name: string, on: boolean) => setListed("ticked", name, on);
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
              Best
            </th>
            <th role="columnheader" scope="col">
              <span className="visually-hidden">Accuracy or loss so far</span>
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
