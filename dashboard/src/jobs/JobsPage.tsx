import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import type { Job } from "../api/types";
import { escapeHidden, naturalOrder } from "../format/text";
import { useFollow } from "../live/LiveProvider";
import { jobsQuery } from "../queries/jobs";
import { sessionQuery } from "../queries/session";
import { Link, newJobPath, replaceParam, useParam } from "../router/router";
import { splitJobsQuery } from "../split/queries";
import { SplitJobsPanel } from "../split/SplitJobsPanel";
import { Icon } from "../ui/Icon";
import { QueryStatus } from "../ui/QueryStatus";
import { filterJobs } from "./filterJobs";
import { FleetSummary } from "./FleetSummary";
import { JobsTable } from "./JobsTable";
import { countStates } from "./sortJobs";
import "../styles/jobs.css";

/** Page of all jobs. */
export function JobsPage() {
  useFollow(null);
  const query = useQuery(jobsQuery);
  const { data: jobs } = query;
  const { data: splitJobs = [] } = useQuery(splitJobsQuery);
  useEffect(() => void (document.title = "Jobs · shoal"), []);
  return (
    <section>
      <header className="page-head">
        <h1>Jobs</h1>
        {jobs && jobs.length > 0 && (
          <p className="summary">{countStates(jobs).map(([state, number]) => `${number} ${state}`).join(" · ")}</p>
        )}
        <NewJobLink />
      </header>
      {jobs === undefined ? (
        <QueryStatus query={query} lines={6} />
      ) : (
        <>
          <FleetSummary jobs={jobs} />
          {jobs.length === 0 ? splitJobs.length === 0 && <NoJobs /> : <FilteredJobs jobs={jobs} />}
        </>
      )}
      <SplitJobsPanel jobs={splitJobs} />
    </section>
  );
}

/** Link to the form for a new job; only operators see it. */
function NewJobLink() {
  const { data: role } = useQuery(sessionQuery);
  if (role !== "operator") return null;
  return (
    <Link href={newJobPath()} className="button primary page-act" data-testid="new-job">
      New job
    </Link>
  );
}

function FilteredJobs({ jobs }: { jobs: Job[] }) {
  const text = useParam("q");
  const filter = { tag: useParam("tag"), state: useParam("state"), algorithm: useParam("algorithm") };
  const found = filterJobs(jobs, text, filter);
  const { tag } = filter;
  return (
    <>
      <div className="toolbar jobs-search">
        <input
          type="search"
          id="search"
          aria-label="Search jobs"
          placeholder="Name, title, algorithm or tag"
          value={text}
          onChange={(event) => replaceParam("q", event.target.value)}
        />
        <FilterSelect name="state" label="State" value={filter.state} options={jobs.map((job) => job.state)} />
        <FilterSelect name="algorithm" label="Algorithm" value={filter.algorithm} options={jobs.map((job) => job.algorithm)} />
        <FilterSelect name="tag" label="Tag" value={tag} options={jobs.flatMap((job) => job.tags)} />
        {tag !== "" && (
          <button type="button" className="quiet-button" data-testid="clear-tag" onClick={() => replaceParam("tag", "")}>
            <Icon name="tag" /> <bdi>{escapeHidden(tag)}</bdi> <Icon name="cross" />
            <span className="visually-hidden">: remove filter</span>
          </button>
        )}
        <span role="status" className="summary">
          {found.length < jobs.length && `${found.length} of ${jobs.length}`}
        </span>
      </div>
      {found.length === 0 ? <p className="panel nothing">No matching jobs</p> : <JobsTable jobs={found} />}
    </>
  );
}

interface FilterSelectProps {
  name: string;
  label: string;
  value: string;
  options: string[];
}

/** Selection of one of the values that occur, or all; hidden if there is only one. */
function FilterSelect({ name, label, value, options }: FilterSelectProps) {
  const values = [...new Set(value === "" ? options : [...options, value])].sort(naturalOrder);
  if (values.length < 2 && value === "") return null;
  return (
    <label className="choice">
      <span>{label}</span>
      <select data-testid={`jobs-${name}`} value={value} onChange={(event) => replaceParam(name, event.target.value)}>
        <option value="">all</option>
        {values.map((one) => (
          <option key={one} value={one}>
            {escapeHidden(one)}
          </option>
        ))}
      </select>
    </label>
  );
}

function NoJobs() {
  return (
    <div className="panel nothing">
      <h2>No jobs yet</h2>
      <p>Submit a job:</p>
      <pre>
        <code>shoal run JOB.toml</code>
      </pre>
      <p>Run the demo, with its own data and nodes:</p>
      <pre>
        <code>shoal demo</code>
      </pre>
    </div>
  );
}
