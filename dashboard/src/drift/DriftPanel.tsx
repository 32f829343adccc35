import { useMemo, type ReactNode } from "react";
import type { Job, JobNode, Version } from "../api/types";
import { shortFigure } from "../charts/axis";
import { useZoom } from "../charts/zoom";
import { bytes, count, figure, percent, plural, UNKNOWN } from "../format/number";
import { duration } from "../format/time";
import { Stat } from "../job/Headline";
import { watchesVariance } from "../format/unit";
import { hasEnded } from "../jobs/order";
import { useConnection } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { Icon } from "../ui/Icon";
import { gaps, jumps, latestRate, rates, saving, steps, threshold, type Jump, type Step } from "./drift";
import { Gaps } from "./Gaps";
import { RateChart, SYNC } from "./RateChart";
import "../styles/drift.css";

interface Props {
  job: Job;
  versions: Version[];
  nodes: JobNode[];
}

/** How models drift apart, what that costs, and whether the data have changed. */
export function DriftPanel({ job, versions, nodes }: Props) {
  const end = useEnd(job, versions);
  const all = useMemo(() => steps(versions), [versions]);
  const marks = useMemo(() => jumps(versions), [versions]);
  const drawn = useMemo(() => rates(all, end), [all, end]);
  const variance = watchesVariance(job);
  const zoom = useZoom("zoom.drift", SYNC);
  const limit = threshold(versions, variance ? "theta" : "delta");
  const far = useMemo(() => (variance ? [] : gaps(nodes, limit)), [variance, nodes, limit]);
  return (
    <section className="drift" aria-label="Drift" data-testid="drift">
      <div className="toolbar">
        <h2>Drift</h2>
      </div>
      <div className="panel">
        <Verdict jumps={marks} />
        <dl className="drift-figures">
          <Rate name="Synchronisations" all={all} end={end} what={({ full, partial }) => full + partial}>
            {count(sum(all, "full"))} full, {count(sum(all, "partial"))} partial
          </Rate>
          {!variance && (
            <Rate name="Violations" all={all} end={end} what={({ violations }) => violations}>
              {count(sum(all, "violations"))} in all
            </Rate>
          )}
          <Stat name={`Threshold ${variance ? "Θ" : "Δ"}`} more={limit === undefined ? "being measured" : meant(variance)}>
            <span className="stat-value" data-testid="drift-threshold">
              {figure(limit)}
            </span>
          </Stat>
          <Saved job={job} nodes={nodes} />
        </dl>
      </div>
      <div className="pair">
        <div className="panel">
          <RateChart what="synchronisations" rates={drawn} jumps={marks} zoom={zoom} />
        </div>
        {!variance && (
          <div className="panel">
            <RateChart what="violations" rates={drawn} jumps={marks} zoom={zoom} />
          </div>
        )}
      </div>
      {limit !== undefined && far.length > 0 && <Gaps gaps={far} delta={limit} />}
    </section>
  );
}

const meant = (variance: boolean) => (variance ? "for the variance of the models" : "for ‖w − r‖² of a node");

/** Seconds from the job's beginning to now, or to its last version when it has ended: silence is seen, too. */
function useEnd(job: Job, versions: Version[]): number {
  const { skew } = useConnection();
  const now = useNow();
  const last = versions.at(-1);
  if (last === undefined) return 0;
  if (hasEnded(job) || job.state === "paused" || job.state === "evaluating") return last.elapsed_s;
  return last.elapsed_s + Math.max(0, (now + skew - Date.parse(last.closed_at)) / 1000);
}

function Verdict({ jumps }: { jumps: Jump[] }) {
  const last = jumps.at(-1);
  if (last === undefined) {
    return (
      <p className="verdict" data-testid="drift-verdict" data-found="false">
        Neither rule for concept drift has fired: synchronisations have not become more frequent, and no measured loss has
        jumped. Slow changes of the data set off neither.
      </p>
    );
  }
  const times = `${last.rise.toFixed(1)} times`;
  const what = last.byLoss ? `the measured loss is ${times} as high` : `models drifted apart ${times} as fast as before`;
  return (
    <p className="verdict found" data-testid="drift-verdict" data-found="true">
      <Icon name="warning" />
      <span>
        <b>Concept drift</b> at about {duration(last.from)}: since version {count(last.since)} {what}, so the data
        seem to have changed. Found after {duration(last.found - last.from)}
        {jumps.length > 1 && `; the ${ordinal(jumps.length)} time in this job`}.
      </span>
    </p>
  );
}

const ordinal = (number: number) => ["", "first", "second", "third"][number] ?? `${number}th`;

const sum = (all: Step[], name: "full" | "partial" | "violations") => all.reduce((total, step) => total + step[name], 0);

interface RateProps {
  name: string;
  all: Step[];
  end: number;
  what: (step: Step) => number;
  children: ReactNode;
}

function Rate({ name, all, end, what, children }: RateProps) {
  return (
    <Stat name={name} more={children}>
      <span className="stat-value" title={`over the last ${duration(Math.min(60, end))}`}>
        {shortFigure(latestRate(all, end, what))}
        <small> a minute</small>
      </span>
    </Stat>
  );
}

function Saved({ job, nodes }: { job: Job; nodes: JobNode[] }) {
  const model = job.model?.bytes ?? 0;
  const spent = job.up_bytes + job.down_bytes;
  const { checks, often, saved } = saving(nodes, model, spent);
  const known = saved !== undefined;
  return (
    <div className="stat">
      <dt>Saved</dt>
      <dd className="stat-value" data-testid="drift-saved">
        {known ? (saved > 0 ? percent(saved) : "nothing") : UNKNOWN}
      </dd>
      <dd className="sub">{known ? `${bytes(spent)} instead of ${bytes(often)}` : "no node has told its checks yet"}</dd>
      {known && (
        <dd className="hint">
          All bytes on the wire, against models alone at each of {plural(checks, "check")}, {bytes(model)} up and as much
          down: computed.
        </dd>
      )}
    </div>
  );
}
