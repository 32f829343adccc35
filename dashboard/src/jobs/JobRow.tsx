import { useQuery } from "@tanstack/react-query";
import { useRef } from "react";
import { sparkVersionsQuery } from "../api/queries";
import type { Job, Version } from "../api/types";
import { Sparkline } from "../charts/Sparkline";
import { best } from "../format/metric";
import { bytes, count, DIVERGED, figure, percent } from "../format/number";
import { visible } from "../format/text";
import { duration } from "../format/time";
import { ModeMark } from "../job/Moves";
import { Tags } from "../job/Tags";
import { jobPath, Link } from "../router";
import { Icon } from "../ui/Icon";
import { Progress } from "../ui/Progress";
import { State } from "../ui/State";
import { useSeen } from "../ui/useSeen";
import { secondsLeft } from "./order";

interface Props {
  job: Job;
  now: number;
  ticked: boolean;
  onTick: (name: string, on: boolean) => void;
}

export function JobRow({ job, now, ticked, onTick }: Props) {
  const row = useRef<HTMLTableRowElement>(null);
  const seen = useSeen(row);
  const { data: versions } = useQuery({ ...sparkVersionsQuery(job.name), enabled: seen });
  const left = secondsLeft(job, now);
  const diverged = Object.values(job.metrics).some((value) => !Number.isFinite(value));
  return (
    <tr ref={row} role="row" data-testid={`job-row-${job.name}`}>
      <td role="cell" className="job-cell-state">
        <input
          type="checkbox"
          className="job-tick"
          aria-label={`Compare ${job.name}`}
          checked={ticked}
          onChange={(event) => onTick(job.name, event.target.checked)}
        />
        <State state={job.state} />
      </td>
      <td role="cell" className="job-cell-name">
        <Link href={jobPath(job.name)} className="job-link">
          <bdi>{visible(job.title || job.name)}</bdi>
        </Link>
        <span className="sub">
          {job.name} · {visible(job.algorithm)} · <bdi>{visible(job.schedule)}</bdi>
        </span>
        {job.idle && (
          <span className="sub waits" data-testid="job-waits">
            Waits: <bdi>{visible(job.state_why)}</bdi>
          </span>
        )}
        {job.mode !== "server" && <ModeMark job={job} />}
        <Tags tags={job.tags} />
      </td>
      <td role="cell" className="job-cell-progress">
        <span className="of">
          <b>{count(job.version)}</b>
          {job.versions === null ? " synchronisations" : ` of ${count(job.versions)}`}
        </span>
        <Progress value={job.progress} label={`${job.name}: progress`} tone={job.state} />
      </td>
      <td role="cell" className="job-cell-left num">
        {left !== null && duration(Math.round(left))}
      </td>
      <td role="cell" className="job-cell-best num">
        <Best job={job} versions={versions} />
        {diverged && <span className="sub bad">{DIVERGED}</span>}
      </td>
      <td role="cell" className="job-cell-spark">
        <Sparkline versions={versions ?? []} />
      </td>
      <td role="cell" className="job-cell-up num">
        <Icon name="up" />
        {bytes(job.up_bytes)}
      </td>
      <td role="cell" className="job-cell-down num">
        <Icon name="down" />
        {bytes(job.down_bytes)}
      </td>
    </tr>
  );
}

/** The best accuracy, or the least loss where no accuracy is measured. */
function Best({ job, versions }: { job: Job; versions: Version[] | undefined }) {
  const least = job.best === null && versions ? best("loss", versions) : undefined;
  if (least === undefined) {
    return (
      <>
        <b className="big">{percent(job.best?.accuracy)}</b>
        {job.best?.nodes === 1 && <span className="sub"> one node</span>}
      </>
    );
  }
  return (
    <>
      <b className="big">{figure(least.value)}</b> <span className="sub">loss</span>
    </>
  );
}
