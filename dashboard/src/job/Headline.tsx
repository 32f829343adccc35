import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { peersQuery } from "../api/queries";
import type { Job, JobNode, Version } from "../api/types";
import { best, latest } from "../format/metric";
import { bytes, count, figure, percent, plural, UNKNOWN } from "../format/number";
import { clock, duration } from "../format/time";
import { elapsed, hasEnded, secondsLeft } from "../jobs/order";
import { useConnection } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { Icon } from "../ui/Icon";
import { Progress } from "../ui/Progress";

interface Props {
  job: Job;
  versions: Version[];
  nodes: JobNode[];
  /** Whether the versions are known: where they are not, nothing is said of what they would tell. */
  known: boolean;
}

/** The run in six figures. */
export function Headline({ job, versions, nodes, known }: Props) {
  return (
    <dl className="headline panel">
      <Stat name="Version" wide>
        <span className="stat-value" data-testid="version-count">
          {count(job.version)}
          {job.versions !== null && <small> of {count(job.versions)}</small>}
        </span>
        <Progress value={job.progress} label="Progress of the job" tone={job.state} />
      </Stat>
      <Accuracy job={job} versions={versions} known={known} />
      <Loss versions={versions} known={known} />
      <Clock job={job} />
      <Stat
        name="Bytes moved"
        more={
          <>
            <Icon name="up" />
            {bytes(job.up_bytes)} <Icon name="down" />
            {bytes(job.down_bytes)}
          </>
        }
      >
        <span className="stat-value">{bytes(job.up_bytes + job.down_bytes)}</span>
      </Stat>
      <Nodes job={job} nodes={nodes} />
    </dl>
  );
}

export function Stat({ name, more, wide, children }: { name: string; more?: ReactNode; wide?: boolean; children: ReactNode }) {
  return (
    <div className={wide ? "stat wide" : "stat"}>
      <dt>{name}</dt>
      <dd>{children}</dd>
      {more !== undefined && <dd className="sub">{more}</dd>}
    </div>
  );
}

function Accuracy({ job, versions, known }: { job: Job; versions: Version[]; known: boolean }) {
  const now = latest("accuracy", versions);
  // While nodes carry the job on by themselves no version is made: their own models are what is learned.
  const { data } = useQuery({ ...peersQuery(job.name), enabled: job.mode !== "server" });
  const peers = job.mode === "server" ? null : data?.now;
  if (peers && typeof peers.accuracy === "number") {
    return (
      <Stat name="Accuracy" more={`mean over ${plural(peers.peers, "peer")}; v${now?.version ?? job.version} had ${percent(now?.value)}`}>
        <span className="stat-value" data-testid="accuracy-latest">
          {percent(peers.accuracy)}
        </span>
      </Stat>
    );
  }
  return (
    <Stat name="Accuracy" more={bestOf(job, now !== undefined, known)}>
      <span className={tone(now?.value)} data-testid="accuracy-latest">
        {percent(now?.value)}
      </span>
      <Part versions={versions} number={now?.version} />
    </Stat>
  );
}

function bestOf({ best }: Job, measured: boolean, known: boolean): string {
  if (best !== null) return `best ${percent(best.accuracy)} at v${best.version}${alone(best.nodes)}`;
  if (!known) return "loading …";
  return measured ? "no best version yet" : "not measured yet";
}

/** Beside a figure that does not rest on all nodes that were asked: on how many it rests. */
function Part({ versions, number }: { versions: Version[]; number: number | undefined }) {
  const part = versions.findLast((version) => version.number === number)?.provisional;
  if (!part) return null;
  return (
    <small className="provisional" data-testid="provisional" title="Provisional: the other nodes that were asked have not measured it yet">
      {" "}
      {count(part.reported)} of {plural(part.asked, "node")}
    </small>
  );
}

/** One node's figure is not the job's: its data may be easy. */
const alone = (nodes: number | null | undefined): string => (nodes === 1 ? ", of one node alone" : "");

function Loss({ versions, known }: { versions: Version[]; known: boolean }) {
  const now = latest("loss", versions);
  const least = best("loss", versions.filter(({ provisional }) => provisional === null));
  const none = known ? "not measured yet" : "loading …";
  return (
    <Stat name="Loss" more={least ? `least ${figure(least.value)} at v${least.version}` : now ? "no least loss yet" : none}>
      <span className={tone(now?.value)}>{figure(now?.value)}</span>
    </Stat>
  );
}

const tone = (value: number | undefined) =>
  value !== undefined && !Number.isFinite(value) ? "stat-value bad" : "stat-value";

function Clock({ job }: { job: Job }) {
  const now = useNow();
  const { skew } = useConnection();
  const past = elapsed(job, now + skew);
  return (
    <Stat name="Elapsed" more={remaining(job, now)}>
      <span className="stat-value">{past === null ? UNKNOWN : duration(past < 10 ? Math.floor(past) : past)}</span>
    </Stat>
  );
}

function remaining(job: Job, now: number): string {
  if (job.ended_at !== null) return `ended ${clock(Date.parse(job.ended_at), now)}`;
  if (job.started_at === null) return "not started";
  if (job.state === "paused") return "paused";
  const left = secondsLeft(job, now);
  if (left === null || hasEnded(job)) return "end not known yet";
  return left < 1 ? "about to end" : `about ${duration(Math.round(left))} left`;
}

function Nodes({ job, nodes }: { job: Job; nodes: JobNode[] }) {
  const lost = nodes.filter((node) => node.left_out === "" && (node.state === "stale" || node.state === "gone")).length;
  const left = job.members - job.nodes;
  const out = left > 0 ? ` · ${count(left)} left out` : "";
  const busy = nodes.length > 0 ? nodes.filter((node) => node.state === "training").length : job.busy;
  return (
    <Stat name="Nodes" more={lost > 0 ? `${plural(lost, "node")} not heard of` : [`${count(busy)} training`, out].join("")}>
      <span className="stat-value">
        {count(job.nodes)}
        {lost > 0 && <small> · {count(busy)} training</small>}
      </span>
    </Stat>
  );
}
