import { useQuery } from "@tanstack/react-query";
import { Suspense } from "react";
import { notesQuery } from "../api/queries";
import { TrafficChart } from "../charts/TrafficChart";
import { isDynamic, unitOf } from "../format/unit";
import { hasEnded } from "../jobs/order";
import { lazily } from "../ui/lazily";
import { Decisions } from "./Decisions";
import { MetricCharts } from "./MetricCharts";
import { mayGossip } from "./moves";
import { Moves } from "./Moves";
import { NodesTable } from "./NodesTable";
import type { ViewProps } from "./tabs";

// Beneath what people look at first.
const DriftPanel = lazily(async () => (await import("../drift/DriftPanel")).DriftPanel);
const ServerPanel = lazily(async () => (await import("../peers/PeersPanel")).ServerPanel);
const PeersPanel = lazily(async () => (await import("../peers/PeersPanel")).PeersPanel);

const NONE: never[] = [];

/** How the run goes: its charts, its decisions, its nodes. */
export function Overview({ job, versions, nodes }: ViewProps) {
  const { data: notes = NONE } = useQuery(notesQuery(job.name));
  return (
    <>
      <div className="job-body">
        <div className="job-charts">
          <Moves job={job} />
          <MetricCharts job={job} versions={versions} nodes={nodes} />
          <Suspense>
            {isDynamic(job) && <DriftPanel job={job} versions={versions} nodes={nodes} />}
            {mayGossip(job) ? <PeersPanel job={job} nodes={nodes} /> : <ServerPanel job={job} nodes={nodes} />}
          </Suspense>
          <div className="panel">
            <TrafficChart versions={versions} unit={unitOf(job)} up={job.up_bytes} down={job.down_bytes} />
          </div>
        </div>
        <Decisions notes={notes} />
      </div>
      <NodesTable job={job} nodes={nodes} dynamic={isDynamic(job)} ended={hasEnded(job)} />
    </>
  );
}
