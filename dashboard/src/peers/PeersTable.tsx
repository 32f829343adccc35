import { useMemo } from "react";
import type { Peer } from "../api/types";
import { pick } from "../format/metric";
import { bytes, count, figure, percent, UNKNOWN } from "../format/number";
import { visible } from "../format/text";
import { ago } from "../format/time";
import { Icon } from "../ui/Icon";
import type { GraphNode } from "./graph";
import { LOOKS, type Standing } from "./standing";
import { allowance, sight, traded, type Traded } from "./tally";
import { Moment } from "../ui/Moment";

interface Props {
  nodes: GraphNode[];
  /** This browser's clock (ms); null once the job has ended. */
  now: number | null;
}

const COLUMNS = ["Peer", "Mode", "Round", "Loss", "Accuracy", "Holds", "Sees", "Exchanges", "Sent", "Received", "Refused", "Heard"];
const WORDY = 2;

/** Each node as a peer: its mode, what its model holds, what it has sent and received, what it has refused. */
export function PeersTable({ nodes, now }: Props) {
  const rows = useMemo(() => nodes.map((node) => ({ ...node, sums: node.peer && traded(node.peer) })), [nodes]);
  const most = Math.max(1, ...rows.flatMap(({ sums }) => (sums ? [sums.sent, sums.received] : [])));
  return (
    <div className="panel peers-scroll" tabIndex={0} role="region" aria-label="Nodes as peers">
      <table className="nodes-table peers-table" role="table" data-testid="peers-table">
        <thead role="rowgroup">
          <tr role="row">
            {COLUMNS.map((title, index) => (
              <th key={title} role="columnheader" scope="col" className={index < WORDY ? undefined : "num"}>
                {title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {rows.map(({ name, peer, standing, sums }) => (
            <tr key={name} role="row" data-testid={`peer-row-${name}`} data-standing={standing}>
              <th role="rowheader" scope="row" className="node-cell-name">
                <bdi title={visible(name)}>{visible(name)}</bdi>
                <span className="sub">{place(peer)}</span>
              </th>
              <Mode standing={standing} peer={peer} />
              <Cells peer={peer} sums={sums} most={most} now={now} />
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function place(peer: Peer | undefined): string {
  if (peer === undefined) return "takes no part in gossip";
  return peer.inbound ? "" : "calls only";
}

function Mode({ standing, peer }: { standing: Standing; peer: Peer | undefined }) {
  const { word, icon, means } = LOOKS[standing];
  const left = peer === undefined ? null : allowance(peer);
  return (
    <td role="cell" className="node-cell-state">
      <span className={`standing ${standing}`} title={means}>
        <Icon name={icon} />
        {word}
      </span>
      {peer !== undefined && peer.state === standing && peer.state_since !== null && (
        <span className="sub peer-since">
          since <Moment at={peer.state_since} />, term {count(peer.term ?? 0)}
        </span>
      )}
      {left !== null && <span className="sub">{left}</span>}
    </td>
  );
}

interface CellsProps {
  peer: Peer | undefined;
  sums: Traded | undefined;
  most: number;
  now: number | null;
}

/** What only a peer that has told something has. */
function Cells({ peer, sums, most, now }: CellsProps) {
  if (peer === undefined || sums === undefined || peer.told_at === null) {
    return COLUMNS.slice(WORDY).map((title) => (
      <td key={title} role="cell" className="num" data-label={title}>
        {UNKNOWN}
      </td>
    ));
  }
  const { alive, others } = sight(peer);
  const refused = [...peer.refused.values()].reduce((sum, number) => sum + number, 0);
  return (
    <>
      <Number title="Round">{peer.round === null ? UNKNOWN : count(peer.round)}</Number>
      <Number title="Loss" bad={isBad(pick("loss", peer.metrics))}>
        {figure(pick("loss", peer.metrics))}
      </Number>
      <Number title="Accuracy">{percent(pick("accuracy", peer.metrics))}</Number>
      <Number title="Holds">{percent(peer.coverage, 0)}</Number>
      <Number title="Sees">{`${count(alive)} of ${count(others)}`}</Number>
      <Number title="Exchanges">{count(sums.exchanges)}</Number>
      <Bytes title="Sent" value={sums.sent} most={most} way="up" />
      <Bytes title="Received" value={sums.received} most={most} way="down" />
      <Number title="Refused" bad={refused > 0}>
        {count(refused)}
      </Number>
      <Number title="Heard">{now === null ? UNKNOWN : ago(Math.max(0, Math.round((now - peer.told_at) / 1000)))}</Number>
    </>
  );
}

const isBad = (value: number | undefined) => value !== undefined && !isFinite(value);

function Number({ title, bad, children }: { title: string; bad?: boolean; children: string }) {
  return (
    <td role="cell" className={bad ? "num bad" : "num"} data-label={title}>
      {children}
    </td>
  );
}

function Bytes({ title, value, most, way }: { title: string; value: number; most: number; way: "up" | "down" }) {
  return (
    <td role="cell" className="num" data-label={title}>
      {bytes(value)}
      <span className="bytes-bar" aria-hidden="true">
        <i className={way} style={{ width: `${(value / most) * 100}%` }} />
      </span>
    </td>
  );
}
