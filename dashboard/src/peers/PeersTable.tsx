import { useMemo } from "react";
import type { Peer } from "../api/types";
import { pickMetric } from "../domain/metrics";
import { formatBytes, formatCount, formatNumber, formatPercent, UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import { formatAgo } from "../format/time";
import { Icon } from "../ui/Icon";
import { Table, type Column } from "../ui/Table";
import { Timestamp } from "../ui/Timestamp";
import { countAlive, describeBudget, exchangeTotals } from "./peerStats";
import { STATUS_STYLES, type PeerStatus } from "./peerStatus";
import type { GraphNode } from "./topologyGraph";

interface Props {
  nodes: GraphNode[];
  /** This browser's clock (ms); null once the job has ended. */
  now: number | null;
}

/** Table of the nodes as peers: mode, exchanges, traffic, refusals. */
export function PeersTable({ nodes, now }: Props) {
  const columns = useMemo(() => buildColumns(nodes, now), [nodes, now]);
  return (
    <div className="panel">
      <Table
        layout="cards"
        className="peers-table"
        columns={columns}
        rows={nodes}
        rowKey={({ name }) => name}
        rowAttributes={({ name, status }) => ({ "data-testid": `peer-row-${name}`, "data-status": status })}
        scroll={{ className: "peers-scroll", label: "Peers, as a table" }}
        testId="peers-table"
      />
    </div>
  );
}

function buildColumns(nodes: GraphNode[], now: number | null): Column<GraphNode>[] {
  const totals = nodes.flatMap(({ peer }) => (peer ? [exchangeTotals(peer)] : []));
  const max = Math.max(1, ...totals.flatMap(({ sent, received }) => [sent, received]));
  /** Return a column that is empty for peers that have not reported. */
  const figure = (title: string, cell: Column<Peer>["cell"], isBad: (peer: Peer) => boolean = () => false): Column<GraphNode> => {
    const reported = ({ peer }: GraphNode) => (peer !== undefined && peer.reported_at !== null ? peer : undefined);
    return {
      title,
      numeric: true,
      cell: (node, index) => {
        const peer = reported(node);
        return peer === undefined ? UNKNOWN : cell(peer, index);
      },
      isBad: (node) => {
        const peer = reported(node);
        return peer !== undefined && isBad(peer);
      },
    };
  };
  const lossOf = (peer: Peer) => pickMetric("loss", peer.metrics);
  const refusedBy = (peer: Peer) => [...peer.refused.values()].reduce((sum, count) => sum + count, 0);
  return [
    {
      title: "Peer",
      className: "node-cell-name",
      cell: ({ name, peer }) => (
        <>
          <bdi title={escapeHidden(name)}>{escapeHidden(name)}</bdi>
          <span className="sub">{connectivity(peer)}</span>
        </>
      ),
    },
    {
      title: "Mode",
      className: "node-cell-state",
      unlabeled: true,
      cell: ({ status, peer }) => <StatusCell status={status} peer={peer} />,
    },
    figure("Local rounds", ({ local_rounds }) => (local_rounds === null ? UNKNOWN : formatCount(local_rounds))),
    figure("Loss", (peer) => formatNumber(lossOf(peer)), (peer) => !Number.isFinite(lossOf(peer) ?? 0)),
    figure("Accuracy", ({ metrics }) => formatPercent(pickMetric("accuracy", metrics))),
    figure("Coverage", ({ coverage }) => formatPercent(coverage, 0)),
    figure("Alive peers", (peer) => {
      const { alive, others } = countAlive(peer);
      return `${formatCount(alive)} of ${formatCount(others)}`;
    }),
    { ...figure("Exchanges", (peer) => formatCount(exchangeTotals(peer).exchanges)), term: "exchange" },
    figure("Sent", (peer) => <BytesBar value={exchangeTotals(peer).sent} max={max} direction="up" />),
    figure("Received", (peer) => <BytesBar value={exchangeTotals(peer).received} max={max} direction="down" />),
    figure("Refused", (peer) => formatCount(refusedBy(peer)), (peer) => refusedBy(peer) > 0),
    figure("Last report", ({ reported_at }) =>
      now === null || reported_at === null ? UNKNOWN : formatAgo(Math.max(0, Math.round((now - reported_at) / 1000))),
    ),
  ];
}

function connectivity(peer: Peer | undefined): string {
  if (peer === undefined) return "no gossip";
  return peer.is_reachable ? "" : "calls only";
}

function StatusCell({ status, peer }: { status: PeerStatus; peer: Peer | undefined }) {
  const { label, icon, meaning } = STATUS_STYLES[status];
  const budget = peer === undefined ? null : describeBudget(peer);
  return (
    <>
      <span className={`peer-status ${status}`} title={meaning}>
        <Icon name={icon} />
        {label}
      </span>
      {peer !== undefined && peer.state === status && peer.state_since !== null && (
        <span className="sub peer-since">
          since <Timestamp at={peer.state_since} />, term {formatCount(peer.term ?? 0)}
        </span>
      )}
      {budget !== null && <span className="sub">{budget}</span>}
    </>
  );
}

function BytesBar({ value, max, direction }: { value: number; max: number; direction: "up" | "down" }) {
  return (
    <>
      {formatBytes(value)}
      <span className="bytes-bar" aria-hidden="true">
        <i className={direction} style={{ width: `${(value / max) * 100}%` }} />
      </span>
    </>
  );
}
