import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense } from "react";
import { TrafficChart } from "../charts/TrafficChart";
import { hasEnded } from "../domain/job";
import { allowsGossip, hasGossiped } from "../domain/modes";
import { isDynamic, unitOf } from "../domain/unit";
import { eventsQuery } from "../queries/jobs";
import { Loading, QueryStatus } from "../ui/QueryStatus";
import { EventsPanel } from "./EventsPanel";
import { MetricCharts } from "./MetricCharts";
import { ModeHistory } from "./ModeHistory";
import { NodesTable } from "./NodesTable";
import type { ViewProps } from "./viewProps";

// These are below the first screen.
const DivergencePanel = lazy(async () => ({ default: (await import("../divergence/DivergencePanel")).DivergencePanel }));
const ServerPanel = lazy(async () => ({ default: (await import("../peers/PeersPanel")).ServerPanel }));
const PeersPanel = lazy(async () => ({ default: (await import("../peers/PeersPanel")).PeersPanel }));

/** The first tab of a job's page: metrics, events, nodes, traffic and topology. */
export function Overview({ job, versions, nodes, queries }: ViewProps) {
  const events = useQuery(eventsQuery(job.name));
  const isReady = queries.versions.data !== undefined;
  return (
    <>
      <div className="job-body">
        <div className="job-charts">
          {isReady ? (
            <MetricCharts job={job} versions={versions} nodes={nodes} />
          ) : (
            <div className="panel">
              <QueryStatus query={queries.versions} lines={6} />
            </div>
          )}
          {hasGossiped(job) && <ModeHistory job={job} />}
          <Suspense fallback={<Loading />}>
            {isDynamic(job) && isReady && <DivergencePanel job={job} versions={versions} nodes={nodes} />}
          </Suspense>
        </div>
        <EventsPanel query={events} events={events.data ?? []} />
      </div>
      <NodesTable nodes={nodes} query={queries.nodes} dynamic={isDynamic(job)} ended={hasEnded(job)} />
      <div className="job-charts job-lower">
        {isReady && (
          <div className="panel">
            <TrafficChart versions={versions} unit={unitOf(job)} up={job.up_bytes} down={job.down_bytes} />
          </div>
        )}
        <Suspense fallback={<Loading />}>
          {allowsGossip(job) ? <PeersPanel job={job} nodes={nodes} /> : <ServerPanel job={job} nodes={nodes} />}
        </Suspense>
      </div>
    </>
  );
}
