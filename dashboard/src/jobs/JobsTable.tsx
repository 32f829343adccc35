import { useQuery } from "@tanstack/react-query";
import { useMemo, useRef, type RefObject } from "react";
import type { Job, Version } from "../api/types";
import { Sparkline, sparklineValues } from "../charts/Sparkline";
import { hasEnded, secondsLeft } from "../domain/job";
import { bestMetric } from "../domain/metrics";
import { DIVERGED, formatBytes, formatCount, formatNumber, formatPercent } from "../format/number";
import { escapeHidden } from "../format/text";
import { formatDuration } from "../format/time";
import { useNow } from "../live/useNow";
import { sparklineVersionsQuery } from "../queries/jobs";
import { comparePath, jobPath, Link, toggleListParam, useChoiceParam, useListParam } from "../router/router";
import { Icon } from "../ui/Icon";
import { ModeBadge } from "../ui/ModeBadge";
import { Progress } from "../ui/Progress";
import { StateBadge } from "../ui/StateBadge";
import { hiddenHeading, Table, type Column } from "../ui/Table";
import { TagList } from "../ui/TagList";
import { useNearViewport } from "../ui/useNearViewport";
import { isDescendingFirst, SORTS, sortJobs, type Sort } from "./sortJobs";

const REVERSED = ["no", "yes"] as const;

/** Table of jobs, with checkboxes that select jobs to compare. */
export function JobsTable({ jobs }: { jobs: Job[] }) {
  const now = useNow();
  const selectedParam = useListParam("selected");
  const selected = useMemo(() => selectedParam.filter((name) => jobs.some((job) => job.name === name)), [selectedParam, jobs]);
  const [sort, setSort] = useChoiceParam<Sort>("sort", SORTS);
  const [reversed, setReversed] = useChoiceParam("reversed", REVERSED);
  const isReversed = reversed === "yes";
  const chooseSort = (by: Sort) => {
    // The third click on a heading restores the default order.
    const isThird = by === sort && isReversed;
    setReversed(by === sort && !isReversed ? "yes" : "no");
    setSort(isThird ? "activity" : by);
  };
  const joined = selected.join(",");
  const columns = useMemo(() => buildColumns(joined === "" ? [] : joined.split(",")), [joined]);
  return (
    <div className="panel">
      {selected.length > 0 && (
        <p className="jobs-selected">
          <Link href={comparePath(selected)} className="button" data-testid="compare">
            Compare {selected.length === 1 ? "1 job" : `${selected.length} jobs`}
          </Link>
        </p>
      )}
      <Table
        layout="custom"
        className="jobs"
        columns={columns}
        rows={sortJobs(jobs, sort, isReversed, now)}
        rowKey={({ name }) => name}
        rowAttributes={rowAttributes}
        sorting={{ by: sort, descending: isDescendingFirst(sort) !== isReversed, onChange: (by) => chooseSort(by as Sort) }}
      />
    </div>
  );
}

const rowAttributes = ({ name }: Job) => ({ "data-testid": `job-row-${name}` });

function buildColumns(selected: string[]): Column<Job>[] {
  const unlabeled = true;
  return [
    {
      title: "State",
      sort: "state",
      className: "job-cell-state",
      rowHeader: false,
      unlabeled,
      cell: (job) => (
        <>
          <input
            type="checkbox"
            className="job-select"
            aria-label={`Compare ${job.name}`}
            checked={selected.includes(job.name)}
            onChange={(event) => toggleListParam("selected", job.name, event.target.checked)}
          />
          <StateBadge state={job.state} />
        </>
      ),
    },
    { title: "Job", sort: "name", className: "job-cell-name", unlabeled, cell: (job) => <NameCell job={job} /> },
    { title: "Progress", sort: "progress", className: "job-cell-progress", unlabeled, cell: (job) => <ProgressCell job={job} /> },
    { title: "Time left", sort: "left", numeric: true, className: "job-cell-left", unlabeled, cell: (job) => <TimeLeft job={job} /> },
    { title: "Best", sort: "best", numeric: true, className: "job-cell-best", unlabeled, cell: (job) => <BestCell job={job} /> },
    {
      title: "History",
      heading: hiddenHeading("Accuracy or loss over time"),
      className: "job-cell-spark",
      unlabeled,
      cell: (job) => <HistoryCell job={job} />,
    },
    {
      title: "Up",
      sort: "up",
      numeric: true,
      className: "job-cell-up",
      unlabeled,
      cell: ({ up_bytes }) => (
        <>
          <Icon name="up" />
          {formatBytes(up_bytes)}
        </>
      ),
    },
    {
      title: "Down",
      sort: "down",
      numeric: true,
      className: "job-cell-down",
      unlabeled,
      cell: ({ down_bytes }) => (
        <>
          <Icon name="down" />
          {formatBytes(down_bytes)}
        </>
      ),
    },
  ];
}

function NameCell({ job }: { job: Job }) {
  return (
    <>
      <Link href={jobPath(job.name)} className="job-link">
        <bdi>{escapeHidden(job.title || job.name)}</bdi>
      </Link>
      <span className="sub">
        {job.name} · {escapeHidden(job.algorithm)} · <bdi>{escapeHidden(job.schedule)}</bdi>
      </span>
      {job.idle && (
        <span className="sub waits" data-testid="job-waits">
          Waiting: <bdi>{escapeHidden(job.state_why)}</bdi>
        </span>
      )}
      {job.mode !== "server" && !hasEnded(job) && <ModeBadge mode={job.mode} testId="job-mode" />}
      <TagList tags={job.tags} />
    </>
  );
}

function ProgressCell({ job }: { job: Job }) {
  return (
    <>
      <span className="of">
        <b>{formatCount(job.version)}</b>
        {job.versions === null ? " synchronizations" : ` of ${formatCount(job.versions)}`}
      </span>
      <Progress value={job.progress} label={`${job.name}: progress`} tone={job.state} />
    </>
  );
}

/** The time left follows the clock by itself, so that the rest of the row is not rendered again. */
function TimeLeft({ job }: { job: Job }) {
  const left = secondsLeft(job, useNow());
  return left === null ? null : formatDuration(Math.round(left));
}

/** Fetch a run's history once the element is near the screen. */
function useHistory(job: Job, element: RefObject<Element | null>): Version[] | undefined {
  const isNear = useNearViewport(element);
  return useQuery({ ...sparklineVersionsQuery(job.name), enabled: isNear }).data;
}

/** The best accuracy, or the lowest loss of a job without accuracy. */
function BestCell({ job }: { job: Job }) {
  const element = useRef<HTMLSpanElement>(null);
  const versions = useHistory(job, element);
  const lowest = job.best === null && versions ? bestMetric("loss", versions) : undefined;
  const isDiverged = Object.values(job.metrics).some((value) => !Number.isFinite(value));
  return (
    <span ref={element}>
      <b className="big">{lowest === undefined ? formatPercent(job.best?.accuracy) : formatNumber(lowest.value)}</b>
      {lowest !== undefined && <span className="sub"> loss</span>}
      {lowest === undefined && job.best?.nodes === 1 && <span className="sub"> one node</span>}
      {isDiverged && <span className="sub bad">{DIVERGED}</span>}
    </span>
  );
}

function HistoryCell({ job }: { job: Job }) {
  const element = useRef<HTMLSpanElement>(null);
  const versions = useHistory(job, element);
  return (
    <span ref={element}>
      <Sparkline values={sparklineValues(versions ?? [])} />
    </span>
  );
}
