import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense } from "react";
import { notesQuery } from "../api/queries";
import { TrafficChart } from "../charts/TrafficChart";
import { isDynamic, unitOf } from "../format/unit";
import { hasEnded } from "../jobs/order";
import { Loading, Unanswered } from "../ui/Unanswered";
import { Decisions } from "./Decisions";
import { MetricCharts } from "./MetricCharts";
import { hasGossiped, mayGossip } from "./moves";
import { Moves } from "./Moves";
import { NodesTable } from "./NodesTable";
import type { ViewProps } from "./tabs";

// Beneath what people look at first.
const DriftPanel = lazy(async () => ({ default: (await import("../drift/DriftPanel")).DriftPanel }));
const ServerPanel = lazy(async () => ({ default: (await import("../peers/PeersPanel")).ServerPanel }));
const PeersPanel = lazy(async () => ({ default: (await import("../peers/PeersPanel")).PeersPanel }));

/** How the run goes: what it has learned, who takes part, what that costs, and how they are connected. */
export function Overview({ job, versions, nodes, answers }: ViewProps) {
  const notes = useQuery(notesQuery(job.name));
  const ready = answers.versions.data !== undefined;
  return (
    <>
      <div className="job-body">
        <div className="job-charts">
          {ready ? (
            <MetricCharts job={job} versions={versions} nodes={nodes} />
          ) : (
            <div className="panel">
              <Unanswered question={answers.versions} lines={6} />
            </div>
          )}
          {hasGossiped(job) && <Moves job={job} />}
          <Suspense fallback={<Loading />}>
            {isDynamic(job) && ready && <DriftPanel job={job} versions={versions} nodes={nodes} />}
          </Suspense>
        </div>
        <Decisions answer={notes} notes={notes.data ?? []} />
      </div>
      <NodesTable nodes={nodes} answer={answers.nodes} dynamic={isDynamic(job)} ended={hasEnded(job)} />
      <div className="job-charts job-lower">
        {ready && (
          <div className="panel">
            <TrafficChart versions={versions} unit={unitOf(job)} up={job.up_bytes} down={job.down_bytes} />
          </div>
        )}
        <Suspense fallback={<Loading />}>
          {mayGossip(job) ? <PeersPanel job={job} nodes={nodes} /> : <ServerPanel job={job} nodes={nodes} />}
        </Suspense>
      </div>
    </>
  );
}
