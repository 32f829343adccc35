import { useEffect, useMemo, useState } from "react";
import type { Job } from "../api/types";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { formatBytes, formatCount, plural, UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import { Icon } from "../ui/Icon";
import { Table, type Column } from "../ui/Table";
import { exchangeTotals } from "./peerStats";
import { isGossiping, STATUS_STYLES, type PeerStatus } from "./peerStatus";
import { TopologyDrawing } from "./TopologyDrawing";
import {
  ACTIVE_MS,
  edgeActivity,
  maxBytes,
  SERVER,
  type EdgeActivity,
  type GraphEdge,
  type GraphNode,
  type MaxBytes,
  type TopologyGraph,
} from "./topologyGraph";

interface Props {
  job: Job;
  graph: TopologyGraph;
  /** This browser's clock (ms); null once the job has ended. */
  now: number | null;
}

const HEIGHT = 320;

/** Diagram of the connections: each node with the coordinator, or nodes with each other in gossip mode. */
export function Topology({ job, graph, now }: Props) {
  const [pointed, setPointed] = useState<string | null>(null);
  const active = useActiveEdges(graph.edges, now);
  const chosen = graph.nodes.find(({ name }) => name === pointed);
  return (
    <ChartFrame
      title="Communication graph (bytes)"
      testId="topology"
      label={null}
      height={HEIGHT}
      empty={graph.nodes.length === 0 ? "No node takes part in this job yet." : null}
      legend={chosen === undefined ? summarize(graph) : describe(chosen)}
      plot={
        <>
          <TopologyDrawing
            graph={graph}
            mode={job.mode}
            active={active}
            pointed={pointed}
            onPoint={setPointed}
            label={`Communication graph: ${summarize(graph)}`}
            describe={describe}
          />
          <Legend nodes={graph.nodes} edges={graph.edges} />
        </>
      }
      table={() => <EdgeTable edges={graph.edges} />}
      csv={() =>
        toCsv(
          ["from", "to", "bytes", "exchanges", "rtt_ms", "state"],
          graph.edges.map((edge) => [edge.from, endOf(edge), edge.bytes, edge.exchanges, edge.rtt_ms, stateOf(edge)]),
        )
      }
    />
  );
}

const endOf = ({ to }: GraphEdge): string => (to === SERVER ? "coordinator" : to);
const stateOf = ({ unreachable, state }: GraphEdge): string | null => (unreachable ? "unreachable" : state);

/** Return the ids of the edges whose bytes have increased a moment ago. */
function useActiveEdges(edges: GraphEdge[], now: number | null): ReadonlySet<string> {
  const [activity, setActivity] = useState<ReadonlyMap<string, EdgeActivity> | null>(null);
  useEffect(() => setActivity((before) => edgeActivity(before, edges, Date.now())), [edges]);
  const found = [...(activity ?? [])].filter(([, { at }]) => now !== null && now - at < ACTIVE_MS).map(([id]) => id);
  const joined = found.join("\n");
  return useMemo(() => new Set(joined === "" ? [] : joined.split("\n")), [joined]);
}

function summarize({ nodes, edges }: TopologyGraph): string {
  const gossiping = nodes.filter(({ status }) => isGossiping(status)).length;
  if (gossiping === 0) {
    // The mode is worth mentioning only if nodes are able to gossip.
    const canGossip = nodes.some(({ peer }) => peer !== undefined);
    return `${plural(nodes.length, "node")}${canGossip ? " in server mode" : ""}`;
  }
  const pairs = edges.filter(({ to }) => to !== SERVER);
  const bytes = pairs.reduce((sum, edge) => sum + edge.bytes, 0);
  return `${formatCount(gossiping)} of ${plural(nodes.length, "node")} in gossip mode · ${plural(pairs.length, "pair")} · ${formatBytes(bytes)}`;
}

function describe({ name, status, peer, bytes }: GraphNode): string {
  const parts = [`${escapeHidden(name)}: ${STATUS_STYLES[status].meaning}`];
  if (isGossiping(status) && peer !== undefined) {
    const { exchanges, sent, received } = exchangeTotals(peer);
    parts.push(plural(peer.local_rounds ?? 0, "local round"), plural(exchanges, "exchange"));
    parts.push(`${formatBytes(sent)} sent, ${formatBytes(received)} received`);
  } else {
    parts.push(`${formatBytes(bytes)} to and from the coordinator`);
  }
  return parts.join(" · ");
}

/** Meaning of the icons in the drawing, and of the widths of the lines. */
function Legend({ nodes, edges }: { nodes: GraphNode[]; edges: GraphEdge[] }) {
  const counts = (Object.keys(STATUS_STYLES) as PeerStatus[]).map((status): [PeerStatus, number] => [
    status,
    nodes.filter((node) => node.status === status).length,
  ]);
  return (
    <div className="topology-legend">
      <ul aria-label="States of the nodes">
        {counts
          .filter(([, count]) => count > 0)
          .map(([status, count]) => (
            <li key={status} className={`peer-status ${status}`} title={STATUS_STYLES[status].meaning}>
              <Icon name={STATUS_STYLES[status].icon} />
              {STATUS_STYLES[status].label} <b>{formatCount(count)}</b>
            </li>
          ))}
      </ul>
      <p className="sub">{describeWidths(maxBytes(edges))}</p>
    </div>
  );
}

function describeWidths({ server, peers }: MaxBytes): string {
  const parts = [peers > 0 && `${formatBytes(peers)} between peers`, server > 0 && `${formatBytes(server)} to the coordinator`];
  const text = parts.filter(Boolean).join(", ");
  return text === "" ? "" : `Line width: bytes, up to ${text}.`;
}

const COLUMNS: Column<GraphEdge>[] = [
  { title: "From", cell: ({ from }) => <bdi>{escapeHidden(from)}</bdi> },
  { title: "To", cell: (edge) => <bdi>{escapeHidden(endOf(edge))}</bdi> },
  { title: "Bytes", numeric: true, cell: ({ bytes }) => formatBytes(bytes) },
  { title: "Exchanges", numeric: true, cell: ({ exchanges }) => (exchanges === null ? UNKNOWN : formatCount(exchanges)) },
  { title: "Round trip", numeric: true, cell: ({ rtt_ms }) => (rtt_ms === null ? UNKNOWN : `${rtt_ms.toFixed(1)} ms`) },
  { title: "State", cell: (edge) => stateOf(edge) ?? UNKNOWN },
];

function EdgeTable({ edges }: { edges: GraphEdge[] }) {
  return <Table columns={COLUMNS} rows={edges.toSorted((a, b) => b.bytes - a.bytes)} rowKey={({ id }) => id} />;
}
