import { useMemo, type ReactNode } from "react";
import type { Job, JobNode, Version } from "../api/types";
import { shortFigure } from "../charts/axis";
import { useZoom } from "../charts/useZoom";
import { hasEnded } from "../domain/job";
import { usesVariance } from "../domain/unit";
import { formatBytes, formatCount, formatNumber, formatPercent, plural, UNKNOWN } from "../format/number";
import { formatDuration } from "../format/time";
import { useConnection } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { Icon } from "../ui/Icon";
import { Stat } from "../ui/Stat";
import {
  bytesSaved,
  conceptDrifts,
  latestRate,
  rates,
  referenceDistances,
  syncSteps,
  threshold,
  type ConceptDrift,
  type SyncStep,
} from "./divergence";
import { RateChart, SYNC } from "./RateChart";
import { ReferenceDistances } from "./ReferenceDistances";
import { Term } from "../ui/Term";
import type { TermName } from "../ui/terms";
import "../styles/divergence.css";

interface Props {
  job: Job;
  versions: Version[];
  nodes: JobNode[];
}

/** Panel of a job with dynamic averaging: synchronizations, the threshold, the bytes saved, and concept drift. */
export function DivergencePanel({ job, versions, nodes }: Props) {
  const end = useEnd(job, versions);
  const steps = useMemo(() => syncSteps(versions), [versions]);
  const drifts = useMemo(() => conceptDrifts(versions), [versions]);
  const shown = useMemo(() => rates(steps, end), [steps, end]);
  const isVariance = usesVariance(job);
  const zoom = useZoom("zoom.divergence", SYNC);
  const limit = threshold(versions, isVariance ? "theta" : "delta");
  const distances = useMemo(() => (isVariance ? [] : referenceDistances(nodes, limit)), [isVariance, nodes, limit]);
  return (
    <section className="divergence" aria-label="Model divergence" data-testid="divergence">
      <div className="toolbar">
        <h2>
          Model <Term of="divergence">divergence</Term>
        </h2>
      </div>
      <div className="panel">
        <DriftStatus drifts={drifts} />
        <dl className="divergence-figures">
          <RateStat name="Synchronizations" term="synchronization" steps={steps} end={end} count={({ full, partial }) => full + partial}>
            {formatCount(total(steps, "full"))} full, {formatCount(total(steps, "partial"))} partial
          </RateStat>
          {!isVariance && (
            <RateStat name="Violations" term="local condition" steps={steps} end={end} count={({ violations }) => violations}>
              {formatCount(total(steps, "violations"))} in total
            </RateStat>
          )}
          <Stat name={`Threshold ${isVariance ? "Θ" : "Δ"}`} more={limit === undefined ? "not known yet" : thresholdMeaning(isVariance)}>
            <span className="stat-value" data-testid="divergence-threshold">
              {formatNumber(limit)}
            </span>
          </Stat>
          <SavedStat job={job} nodes={nodes} />
        </dl>
      </div>
      <div className="pair">
        <div className="panel">
          <RateChart kind="synchronizations" rates={shown} drifts={drifts} zoom={zoom} />
        </div>
        {!isVariance && (
          <div className="panel">
            <RateChart kind="violations" rates={shown} drifts={drifts} zoom={zoom} />
          </div>
        )}
      </div>
      {limit !== undefined && distances.length > 0 && <ReferenceDistances distances={distances} delta={limit} />}
    </section>
  );
}

const thresholdMeaning = (isVariance: boolean) => (isVariance ? "limit on the variance of the models" : "limit on a node's divergence ‖w − r‖²");

/** Return the seconds from the job's start to now, or to its last version if it does not run. */
function useEnd(job: Job, versions: Version[]): number {
  const { skew } = useConnection();
  const now = useNow();
  const last = versions.at(-1);
  if (last === undefined) return 0;
  if (hasEnded(job) || job.state === "paused" || job.state === "evaluating") return last.elapsed_s;
  return last.elapsed_s + Math.max(0, (now + skew - Date.parse(last.closed_at)) / 1000);
}

function DriftStatus({ drifts }: { drifts: ConceptDrift[] }) {
  const last = drifts.at(-1);
  if (last === undefined) {
    return (
      <p className="drift-status" data-testid="drift-status" data-found="false">
        No <Term of="concept drift">concept drift</Term> detected: neither the rate of synchronizations nor a measured loss has jumped. Slow changes of the
        data are not detected.
      </p>
    );
  }
  const factor = `${last.rise.toFixed(1)} times`;
  const text = last.byLoss ? `the measured loss is ${factor} as high` : `models diverge ${factor} as fast`;
  return (
    <p className="drift-status found" data-testid="drift-status" data-found="true">
      <Icon name="warning" />
      <span>
        <b>
          <Term of="concept drift">Concept drift</Term>
        </b> at about {formatDuration(last.from)}: since version {formatCount(last.since)} {text}. Detected after{" "}
        {formatDuration(last.found - last.from)}
        {drifts.length > 1 && `; ${drifts.length} drifts in this job`}.
      </span>
    </p>
  );
}

const total = (steps: SyncStep[], name: "full" | "partial" | "violations") => steps.reduce((sum, step) => sum + step[name], 0);

interface RateStatProps {
  name: string;
  term: TermName;
  steps: SyncStep[];
  end: number;
  count: (step: SyncStep) => number;
  children: ReactNode;
}

function RateStat({ name, term, steps, end, count, children }: RateStatProps) {
  return (
    <Stat name={name} term={term} more={children}>
      <span className="stat-value" title={`over the last ${formatDuration(Math.min(60, end))}`}>
        {shortFigure(latestRate(steps, end, count))}
        <small> per minute</small>
      </span>
    </Stat>
  );
}

function SavedStat({ job, nodes }: { job: Job; nodes: JobNode[] }) {
  const model = job.model?.bytes ?? 0;
  const spent = job.up_bytes + job.down_bytes;
  const { checks, often, saved } = bytesSaved(nodes, model, spent);
  const isKnown = saved !== undefined;
  return (
    <div className="stat">
      <dt>Bytes saved</dt>
      <dd className="stat-value" data-testid="divergence-saved">
        {isKnown ? (saved > 0 ? formatPercent(saved) : "none") : UNKNOWN}
      </dd>
      <dd className="sub">{isKnown ? `${formatBytes(spent)} instead of ${formatBytes(often)}` : "no checks reported yet"}</dd>
      {isKnown && (
        <dd className="hint">
          All bytes transferred, compared with a model of {formatBytes(model)} up and down at each of {plural(checks, "check")}.
        </dd>
      )}
    </div>
  );
}
