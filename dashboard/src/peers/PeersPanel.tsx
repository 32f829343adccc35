import { useQuery } from "@tanstack/react-query";
import { useMemo, useRef } from "react";
import type { Job, JobNode, JobPeers, Peer } from "../api/types";
import { useZoom } from "../charts/useZoom";
import { hasEnded } from "../domain/job";
import { hasGossiped } from "../domain/modes";
import { formatBytes, formatCount, plural, UNKNOWN } from "../format/number";
import { useNow } from "../live/useNow";
import { peersQuery, trafficByKindQuery } from "../queries/jobs";
import { QueryStatus } from "../ui/QueryStatus";
import { Stat } from "../ui/Stat";
import { CoverageMatrix } from "./CoverageMatrix";
import { PEER_METRICS, PeerMetricChart, SYNC } from "./PeerMetricChart";
import { PeersTable } from "./PeersTable";
import { exchangeTotals, serverBytes } from "./peerStats";
import { isGossiping, silentPeers } from "./peerStatus";
import { RefusedMessages } from "./RefusedMessages";
import { Topology } from "./Topology";
import { topologyGraph, type TopologyGraph } from "./topologyGraph";
import { Term } from "../ui/Term";
import "../styles/peers.css";

const EMPTY: never[] = [];
const METRICS = ["accuracy", "loss", "consensus", "residual", "coverage"] as const;
/** Metrics whose charts are shown only if peers have reported them. */
const OPTIONAL: ReadonlySet<string> = new Set(["accuracy", "loss"]);

interface Props {
  job: Job;
  nodes: JobNode[];
}

/** Panel of a job that may gossip: topology, peer metrics, refused messages, peers. */
export function PeersPanel({ job, nodes }: Props) {
  const query = useQuery(peersQuery(job.name));
  const clock = useNow();
  if (query.data === undefined) return <QueryStatus query={query} />;
  return <PeersView job={job} nodes={nodes} view={query.data} now={hasEnded(job) ? null : clock} />;
}

/** Topology of a job that never gossips. */
export function ServerPanel({ job, nodes }: Props) {
  const clock = useNow();
  const now = hasEnded(job) ? null : clock;
  const graph = useGraph(job, nodes, EMPTY, now);
  if (nodes.length === 0) return null;
  return (
    <div className="panel">
      <Topology job={job} graph={graph} now={now} />
    </div>
  );
}

function PeersView({ job, nodes, view, now }: Props & { view: JobPeers; now: number | null }) {
  const zoom = useZoom("zoom.peers", SYNC);
  const graph = useGraph(job, nodes, view.peers, now);
  const hasHistory = view.history.length > 0 || graph.nodes.some(({ status }) => isGossiping(status));
  const hasReports = view.peers.some((peer) => peer.reported_at !== null) && (hasHistory || hasGossiped(job));
  const hasValues = (metric: (typeof METRICS)[number]) => view.history.some((point) => (point[metric] ?? null) !== null);
  return (
    <section className="peers" aria-label="Peers" data-testid="peers">
      {hasHistory && (
        <>
          <div className="toolbar">
            <h2>
              <Term of="peer">Peers</Term>
            </h2>
          </div>
          <Figures view={view} graph={graph} />
        </>
      )}
      <div className="panel">
        <Topology job={job} graph={graph} now={now} />
      </div>
      {view.peers.length === 0 && !hasEnded(job) && <NoPeers />}
      {hasHistory && (
        <div className="pair">
          {METRICS.filter((metric) => !OPTIONAL.has(metric) || hasValues(metric)).map((metric) => (
            <div key={metric} className="panel">
              <PeerMetricChart metric={metric} history={view.history} zoom={zoom} />
            </div>
          ))}
          <div className="panel">
            <CoverageMatrix peers={view.peers} />
          </div>
        </div>
      )}
      {hasReports && <RefusedMessages peers={view.peers} />}
      {hasReports && <PeersTable nodes={graph.nodes} now={now} />}
    </section>
  );
}

/** Return the same graph until a peer reports something new or stops reporting. */
function useGraph(job: Job, nodes: JobNode[], peers: Peer[], now: number | null): TopologyGraph {
  const { data: traffic = EMPTY } = useQuery(trafficByKindQuery(job));
  const bytes = useMemo(() => serverBytes(traffic), [traffic]);
  const silent = silentPeers(peers, now);
  const clock = useRef(now);
  clock.current = now;
  return useMemo(() => (void silent, topologyGraph(nodes, peers, bytes, clock.current)), [nodes, peers, bytes, silent]);
}

function Figures({ view, graph: { nodes } }: { view: JobPeers; graph: TopologyGraph }) {
  const { now, peers } = view;
  const gossiping = nodes.filter(({ status }) => isGossiping(status)).length;
  const totals = peers.map(exchangeTotals);
  const sent = totals.reduce((sum, one) => sum + one.sent, 0);
  const received = totals.reduce((sum, one) => sum + one.received, 0);
  return (
    <dl className="panel peer-figures">
      <Stat name="In gossip mode" term="gossip" more={gossiping === 0 ? "all in server mode" : `of ${plural(nodes.length, "node")}`}>
        <span className="stat-value" data-testid="peers-gossiping">
          {formatCount(gossiping)}
        </span>
      </Stat>
      {METRICS.map((metric) => (
        <Stat key={metric} name={PEER_METRICS[metric].title} term={PEER_METRICS[metric].term} more={PEER_METRICS[metric].meaning}>
          <span className="stat-value" data-testid={`peers-${metric}`}>
            {(now?.[metric] ?? null) === null ? UNKNOWN : PEER_METRICS[metric].format(now?.[metric])}
          </span>
        </Stat>
      ))}
      <Stat name="Bytes between peers" more={`sent; ${formatBytes(received)} received`}>
        <span className="stat-value">{formatBytes(sent)}</span>
      </Stat>
    </dl>
  );
}

function NoPeers() {
  return (
    <p className="panel nothing">
      No peers: no node has an address for peers. Start nodes with{" "}
      <code>shoal join URL --peer-listen HOST:PORT</code>
    </p>
  );
}
