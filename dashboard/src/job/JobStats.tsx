import { useQuery } from "@tanstack/react-query";
import { peersQuery } from "../queries/jobs";
import type { Job, JobNode, Version } from "../api/types";
import { bestMetric, latestMetric } from "../domain/metrics";
import { formatBytes, formatCount, formatNumber, formatPercent, plural, UNKNOWN } from "../format/number";
import { formatTime, formatDuration } from "../format/time";
import { elapsed, hasEnded, secondsLeft } from "../domain/job";
import { useConnection } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { Icon } from "../ui/Icon";
import { Progress } from "../ui/Progress";
import { Stat } from "../ui/Stat";

interface Props {
  job: Job;
  versions: Version[];
  nodes: JobNode[];
  /** True if the versions are loaded. */
  isLoaded: boolean;
}

/** The main figures of a run. */
export function JobStats({ job, versions, nodes, isLoaded }: Props) {
  return (
    <dl className="headline panel">
      <Stat name="Version" term="model version" wide>
        <span className="stat-value" data-testid="version-count">
          {formatCount(job.version)}
          {job.versions !== null && <small> of {formatCount(job.versions)}</small>}
        </span>
        <Progress value={job.progress} label="Progress of the job" tone={job.state} />
      </Stat>
      <AccuracyStat job={job} versions={versions} isLoaded={isLoaded} />
      <LossStat versions={versions} isLoaded={isLoaded} />
      <ElapsedStat job={job} />
      <Stat
        name="Traffic"
        term="traffic"
        more={
          <>
            <Icon name="up" />
            {formatBytes(job.up_bytes)} <Icon name="down" />
            {formatBytes(job.down_bytes)}
          </>
        }
      >
        <span className="stat-value">{formatBytes(job.up_bytes + job.down_bytes)}</span>
      </Stat>
      <NodesStat job={job} nodes={nodes} />
    </dl>
  );
}

function AccuracyStat({ job, versions, isLoaded }: { job: Job; versions: Version[]; isLoaded: boolean }) {
  const now = latestMetric("accuracy", versions);
  // In gossip mode the coordinator makes no versions, so the accuracy is that of the peers' models.
  const { data } = useQuery({ ...peersQuery(job.name), enabled: job.mode !== "server" });
  const peers = job.mode === "server" ? null : data?.now;
  if (peers && typeof peers.accuracy === "number") {
    return (
      <Stat name="Accuracy" more={`mean over ${plural(peers.peers, "peer")}; v${now?.version ?? job.version} had ${formatPercent(now?.value)}`}>
        <span className="stat-value" data-testid="accuracy-latest">
          {formatPercent(peers.accuracy)}
        </span>
      </Stat>
    );
  }
  return (
    <Stat name="Accuracy" more={bestOf(job, now !== undefined, isLoaded)}>
      <span className={valueClass(now?.value)} data-testid="accuracy-latest">
        {formatPercent(now?.value)}
      </span>
      <ProvisionalNote versions={versions} number={now?.version} />
    </Stat>
  );
}

function bestOf({ best }: Job, measured: boolean, isLoaded: boolean): string {
  if (best !== null) return `best ${formatPercent(best.accuracy)} at v${best.version}${singleNodeNote(best.nodes)}`;
  if (!isLoaded) return "loading…";
  return measured ? "no best version yet" : "not measured yet";
}

/** The number of nodes on which a provisional figure is based. */
function ProvisionalNote({ versions, number }: { versions: Version[]; number: number | undefined }) {
  const provisional = versions.findLast((version) => version.number === number)?.provisional;
  if (!provisional) return null;
  return (
    <small className="provisional" data-testid="provisional" title="Provisional: not all nodes have evaluated this version yet">
      {" "}
      {formatCount(provisional.reported)} of {plural(provisional.asked, "node")}
    </small>
  );
}

/** One node's accuracy may not represent the job, because its data may be easy. */
const singleNodeNote = (nodes: number | null | undefined): string => (nodes === 1 ? ", on one node" : "");

function LossStat({ versions, isLoaded }: { versions: Version[]; isLoaded: boolean }) {
  const now = latestMetric("loss", versions);
  const lowest = bestMetric("loss", versions.filter(({ provisional }) => provisional === null));
  const none = isLoaded ? "not measured yet" : "loading…";
  return (
    <Stat name="Loss" more={lowest ? `lowest ${formatNumber(lowest.value)} at v${lowest.version}` : now ? "no lowest loss yet" : none}>
      <span className={valueClass(now?.value)}>{formatNumber(now?.value)}</span>
    </Stat>
  );
}

const valueClass = (value: number | undefined) =>
  value !== undefined && !Number.isFinite(value) ? "stat-value bad" : "stat-value";

function ElapsedStat({ job }: { job: Job }) {
  const now = useNow();
  const { skew } = useConnection();
  const past = elapsed(job, now + skew);
  return (
    <Stat name="Elapsed" more={remaining(job, now)}>
      <span className="stat-value">{past === null ? UNKNOWN : formatDuration(past < 10 ? Math.floor(past) : past)}</span>
    </Stat>
  );
}

function remaining(job: Job, now: number): string {
  if (job.ended_at !== null) return `ended ${formatTime(Date.parse(job.ended_at), now)}`;
  if (job.started_at === null) return "not started";
  if (job.state === "paused") return "paused";
  const left = secondsLeft(job, now);
  if (left === null || hasEnded(job)) return "end unknown";
  return left < 1 ? "about to end" : `about ${formatDuration(Math.round(left))} left`;
}

function NodesStat({ job, nodes }: { job: Job; nodes: JobNode[] }) {
  const lost = nodes.filter((node) => node.excluded_text === "" && (node.state === "stale" || node.state === "gone")).length;
  const left = job.members - job.nodes;
  const out = left > 0 ? ` · ${formatCount(left)} excluded` : "";
  const busy = nodes.length > 0 ? nodes.filter((node) => node.state === "training").length : job.busy;
  return (
    <Stat name="Nodes" more={lost > 0 ? `${plural(lost, "node")} unreachable` : [`${formatCount(busy)} training`, out].join("")}>
      <span className="stat-value">
        {formatCount(job.nodes)}
        {lost > 0 && <small> · {formatCount(busy)} training</small>}
      </span>
    </Stat>
  );
}
