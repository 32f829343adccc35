import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { ApiError } from "../api/client";
import type { SplitJobDetail, SplitNode } from "../api/types";
import { formatBytes, formatCount, formatNumber, plural, UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import { useFollow } from "../live/LiveProvider";
import { Link, nodePath } from "../router/router";
import { ErrorMessage } from "../ui/ErrorMessage";
import { Icon } from "../ui/Icon";
import { KeyValueList } from "../ui/KeyValueList";
import { Progress } from "../ui/Progress";
import { Loading } from "../ui/QueryStatus";
import { Stat } from "../ui/Stat";
import { StateBadge } from "../ui/StateBadge";
import { Table, type Column } from "../ui/Table";
import { LossChart } from "./LossChart";
import { splitJobQuery } from "./queries";
import { StepBytesChart } from "./StepBytesChart";
import { cutText, partiesOf, turnsText, whyState } from "./stepBytes";
import "../styles/job.css";
import "../styles/split.css";

/** Page of one split job. */
export function SplitJobPage({ name }: { name: string }) {
  useFollow(null);
  const { data: job, error, refetch } = useQuery(splitJobQuery(name));
  useEffect(() => void (document.title = `${name} · shoal`), [name]);
  const isMissing = error instanceof ApiError && error.status === 404;
  return (
    <article className="split-job">
      <nav className="crumbs" aria-label="Breadcrumb">
        <Link href="/">Jobs</Link>
      </nav>
      {job !== undefined ? (
        <Content job={job} />
      ) : (
        <>
          <h1>{isMissing ? "Job not found" : <bdi>{escapeHidden(name)}</bdi>}</h1>
          {error ? <ErrorMessage error={error} {...(isMissing ? {} : { onRetry: () => void refetch() })} /> : <Loading lines={6} />}
        </>
      )}
    </article>
  );
}

function Content({ job }: { job: SplitJobDetail }) {
  const why = whyState(job);
  return (
    <>
      <header className="job-head">
        <div className="job-names">
          <div className="job-title">
            <h1>
              <bdi>{escapeHidden(job.name)}</bdi>
            </h1>
            <StateBadge state={job.state} testId="split-state" />
          </div>
          {why !== "" && (
            <p className="job-headline" data-testid="split-why">
              <bdi>{escapeHidden(why)}</bdi>
            </p>
          )}
          <p className="sub">split job · {escapeHidden(cutText(job.spec))}</p>
        </div>
      </header>
      <Stats job={job} />
      <section aria-label="Rounds">
        <header className="section-head">
          <h2>Rounds</h2>
        </header>
        <div className="pair">
          <div className="panel">
            <LossChart versions={job.versions} />
          </div>
          <div className="panel">
            <StepBytesChart job={job} />
          </div>
        </div>
        <p className="sub split-bytes-text">
          Bars: all bytes of a round, with the parts of the model and HTTP heads, for each step. Dashed lines: the tensors of a full batch,
          by formula.
        </p>
      </section>
      <section aria-label="Nodes">
        <header className="section-head">
          <h2>Nodes</h2>
        </header>
        <div className="panel">
          <Table columns={NODE_COLUMNS} rows={job.nodes} rowKey={({ name }) => name} empty="No node has joined yet." testId="split-nodes" />
        </div>
      </section>
      <section aria-label="Configuration">
        <header className="section-head">
          <h2>Configuration</h2>
        </header>
        <KeyValueList values={job.spec} className="configuration" />
      </section>
    </>
  );
}

function Stats({ job }: { job: SplitJobDetail }) {
  const rounds = Number(job.spec["rounds"]);
  const turn = turnsText(job);
  return (
    <dl className="headline panel">
      <Stat name="Round" wide>
        <span className="stat-value" data-testid="split-round">
          {formatCount(job.round)}
          <small> of {formatCount(rounds)}</small>
        </span>
        <Progress value={job.round / rounds} label="Progress of the job" tone={job.state} />
      </Stat>
      <Stat name="Loss" more="in training, last round">
        <span className="stat-value">{formatNumber(job.metrics["train/loss"])}</span>
      </Stat>
      <Stat name="Turn" more={turn === "" ? "no open turn" : "trains now"}>
        <span className="stat-value" data-testid="split-turn">
          <bdi>{escapeHidden(turn) || UNKNOWN}</bdi>
        </span>
      </Stat>
      <Stat name="Bytes of a step" more={<UpAndDown up={job.step_up_bytes} down={job.step_down_bytes} />}>
        <span className="stat-value" data-testid="split-step-bytes">
          {formatBytes(job.step_up_bytes + job.step_down_bytes)}
        </span>
      </Stat>
      <Stat name="Traffic" term="traffic" more={<UpAndDown up={job.up_bytes} down={job.down_bytes} />}>
        <span className="stat-value">{formatBytes(job.up_bytes + job.down_bytes)}</span>
      </Stat>
      <Stat name="Batch" more={partiesOf(job.spec).length > 0 ? "of all parties" : `${String(job.spec["order"])} turns`}>
        <span className="stat-value">
          {formatCount(Number(job.spec["batch_size"]))}
          <small> examples</small>
        </span>
      </Stat>
    </dl>
  );
}

function UpAndDown({ up, down }: { up: number; down: number }) {
  return (
    <>
      <Icon name="up" />
      {formatBytes(up)} <Icon name="down" />
      {formatBytes(down)}
    </>
  );
}

const NODE_COLUMNS: Column<SplitNode>[] = [
  {
    title: "Node",
    cell: ({ name }) => (
      <Link href={nodePath(name)}>
        <bdi>{escapeHidden(name)}</bdi>
      </Link>
    ),
  },
  {
    title: "State",
    cell: ({ turn_batches, excluded }) =>
      excluded === "" ? (
        <StateBadge state={turn_batches === null ? "idle" : "training"} />
      ) : (
        <>
          <StateBadge state="failed" /> <span className="sub">excluded: {escapeHidden(excluded)}</span>
        </>
      ),
  },
  {
    title: "Turn",
    numeric: true,
    cell: ({ turn_batches }) => (turn_batches === null ? UNKNOWN : plural(turn_batches, "step")),
  },
];
