import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { jobsQuery, sessionQuery } from "../api/queries";
import type { Job } from "../api/types";
import { byNumber, visible } from "../format/text";
import { useFollow } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { comparePath, Link, newJobPath, replaceParam, setListed, useChoice, useList, useParam } from "../router";
import { Icon } from "../ui/Icon";
import { Fleet } from "./Fleet";
import { JobRow } from "./JobRow";
import { matching } from "./matching";
import { countStates, firstIs, sortJobs, SORTS, type Sort } from "./order";
import { Unanswered } from "../ui/Unanswered";
import "../styles/jobs.css";

export function JobsPage() {
  useFollow(null);
  const question = useQuery(jobsQuery);
  const { data: jobs } = question;
  useEffect(() => void (document.title = "Jobs · shoal"), []);
  return (
    <section>
      <header className="page-head">
        <h1>Jobs</h1>
        {jobs && jobs.length > 0 && <Summary jobs={jobs} />}
        <NewJob />
      </header>
      {jobs === undefined && <Unanswered question={question} lines={6} />}
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
  const chosen = { tag: useParam("tag"), state: useParam("state"), algorithm: useParam("algorithm") };
  const found = matching(jobs, words, chosen);
  const { tag } = chosen;
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
        <Choice name="state" label="State" value={chosen.state} of={jobs.map((job) => job.state)} />
        <Choice name="algorithm" label="Algorithm" value={chosen.algorithm} of={jobs.map((job) => job.algorithm)} />
        <Choice name="tag" label="Tag" value={tag} of={jobs.flatMap((job) => job.tags)} />
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

/** One of the values that occur, or all; not there where there is nothing to choose. */
function Choice({ name, label, value, of }: { name: string; label: string; value: string; of: string[] }) {
  const values = [...new Set(value === "" ? of : [...of, value])].sort(byNumber);
  if (values.length < 2 && value === "") return null;
  return (
    <label className="choice">
      <span>{label}</span>
      <select data-testid={`jobs-${name}`} value={value} onChange={(event) => replaceParam(name, event.target.value)}>
        <option value="">all</option>
        {values.map((one) => (
          <option key={one} value={one}>
            {visible(one)}
          </option>
        ))}
      </select>
    </label>
  );
}

const COLUMNS: { sort: Sort; title: string; className?: string }[] = [
  { sort: "state", title: "State" },
  { sort: "name", title: "Job" },
  { sort: "progress", title: "Progress" },
  { sort: "left", title: "Time left", className: "num" },
  { sort: "best", title: "Best", className: "num" },
  { sort: "activity", title: "Accuracy or loss so far" },
  { sort: "up", title: "Bytes up", className: "num" },
  { sort: "down", title: "Bytes down", className: "num" },
];
const TURNS = ["no", "yes"] as const;

function JobsTable({ jobs }: { jobs: Job[] }) {
  const now = useNow();
  const ticked = useList("ticked").filter((name) => jobs.some((job) => job.name === name));
  const [sort, setSort] = useChoice<Sort>("sort", SORTS);
  const [turned, setTurned] = useChoice("turned", TURNS);
  const choose = (chosen: Sort) => {
    // The third time a column is chosen the list is as it was at first.
    const again = chosen === sort && turned === "yes";
    setTurned(chosen === sort && turned === "no" ? "yes" : "no");
    setSort(again ? "activity" : chosen);
  };
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
            {COLUMNS.map((column) => (
              <Heading key={column.title} {...column} chosen={sort} turned={turned === "yes"} onChoose={choose} />
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {sortJobs(jobs, sort, turned === "yes", now).map((job) => (
            <JobRow key={job.name} job={job} now={now} ticked={ticked.includes(job.name)} onTick={tick} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface HeadingProps {
  sort: Sort;
  title: string;
  className?: string;
  chosen: Sort;
  turned: boolean;
  onChoose: (sort: Sort) => void;
}

function Heading({ sort, title, className, chosen, turned, onChoose }: HeadingProps) {
  if (sort === "activity") {
    return (
      <th role="columnheader" scope="col">
        <span className="visually-hidden">{title}</span>
      </th>
    );
  }
  const own = sort === chosen;
  const rises = (firstIs(sort) === "least") !== turned;
  return (
    <th
      role="columnheader"
      scope="col"
      className={className}
      aria-sort={own ? (rises ? "ascending" : "descending") : undefined}
    >
      <button type="button" className="sort-button" onClick={() => onChoose(sort)}>
        {title}
        {own && <Icon name="sort" />}
      </button>
    </th>
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
