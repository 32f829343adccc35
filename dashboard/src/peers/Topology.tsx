import { useEffect, useMemo, useState } from "react";
import type { Job } from "../api/types";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { bytes, count, plural, UNKNOWN } from "../format/number";
import { visible } from "../format/text";
import { Icon } from "../ui/Icon";
import { BUSY, flows, most, SERVER, type Flow, type Graph, type GraphEdge, type GraphNode, type Most } from "./graph";
import { isOut, LOOKS, type Standing } from "./standing";
import { traded } from "./tally";
import { TopologyDrawing } from "./TopologyDrawing";

interface Props {
  job: Job;
  graph: Graph;
  /** This browser's clock (ms); null once the job has ended. */
  now: number | null;
}

const HEIGHT = 320;

/** Who talks to whom: the server's star, or the exchanges of nodes that carry on among themselves. */
export function Topology({ job, graph, now }: Props) {
  const [pointed, setPointed] = useState<string | null>(null);
  const busy = useBusy(graph.edges, now);
  const chosen = graph.nodes.find(({ name }) => name === pointed);
  return (
    <ChartFrame
      title="Who talks to whom"
      testId="topology"
      label={null}
      height={HEIGHT}
      empty={graph.nodes.length === 0 ? "No node has joined this job yet." : null}
      readout={chosen === undefined ? summary(graph) : describe(chosen)}
      plot={
        <>
          <TopologyDrawing
            graph={graph}
            mode={job.mode}
            busy={busy}
            pointed={pointed}
            onPoint={setPointed}
            label={`Who talks to whom: ${summary(graph)}`}
            describe={describe}
          />
          <Legend nodes={graph.nodes} edges={graph.edges} />
        </>
      }
      table={() => <EdgeTable edges={graph.edges} />}
      csv={() =>
        toCsv(
          ["from", "to", "bytes", "exchanges", "rtt_ms", "state"],
          graph.edges.map((edge) => [
            edge.from,
            edge.to === SERVER ? "the coordinator" : edge.to,
            edge.bytes,
            edge.exchanges,
            edge.rtt_ms,
            edge.ghost ? "lost" : edge.state,
          ]),
        )
      }
    />
  );
}

/** The lines along which something has flowed a moment ago. */
function useBusy(edges: GraphEdge[], now: number | null): ReadonlySet<string> {
  const [known, setKnown] = useState<ReadonlyMap<string, Flow> | null>(null);
  useEffect(() => setKnown((before) => flows(before, edges, Date.now())), [edges]);
  const found = [...(known ?? [])].filter(([, { at }]) => now !== null && now - at < BUSY).map(([id]) => id);
  const joined = found.join("\n");
  return useMemo(() => new Set(joined === "" ? [] : joined.split("\n")), [joined]);
}

function summary({ nodes, edges }: Graph): string {
  const out = nodes.filter(({ standing }) => isOut(standing)).length;
  if (out === 0) {
    // Only where nodes could go elsewhere is it worth saying that they are at the server.
    const may = nodes.some(({ peer }) => peer !== undefined);
    return `${plural(nodes.length, "node")} ${may ? "at the server" : "around the coordinator"}`;
  }
  const pairs = edges.filter(({ to }) => to !== SERVER);
  const moved = pairs.reduce((sum, edge) => sum + edge.bytes, 0);
  return `${count(out)} of ${plural(nodes.length, "node")} among themselves · ${plural(pairs.length, "pair")} · ${bytes(moved)}`;
}

function describe({ name, standing, peer, bytes: served }: GraphNode): string {
  const parts = [`${visible(name)}: ${LOOKS[standing].means}`];
  if (isOut(standing) && peer !== undefined) {
    const { exchanges, sent, received } = traded(peer);
    parts.push(`round ${count(peer.round ?? 0)}`, plural(exchanges, "exchange"));
    parts.push(`${bytes(sent)} sent, ${bytes(received)} received`);
  } else {
    parts.push(`${bytes(served)} to and from the coordinator`);
  }
  return parts.join(" · ");
}

/** What the icons mean that are in the drawing, and what the lines mean. */
function Legend({ nodes, edges }: { nodes: GraphNode[]; edges: GraphEdge[] }) {
  const standings = Object.keys(LOOKS) as Standing[];
  const numbers = standings.map((standing): [Standing, number] => [
    standing,
    nodes.filter((node) => node.standing === standing).length,
  ]);
  return (
    <div className="topology-legend">
      <ul aria-label="States of the nodes">
        {numbers
          .filter(([, number]) => number > 0)
          .map(([standing, number]) => (
            <li key={standing} className={`standing ${standing}`} title={LOOKS[standing].means}>
              <Icon name={LOOKS[standing].icon} />
              {LOOKS[standing].word} <b>{count(number)}</b>
            </li>
          ))}
      </ul>
      <p className="sub">{scaleOf(most(edges))}</p>
    </div>
  );
}

function scaleOf({ server, peers }: Most): string {
  const parts = [peers > 0 && `${bytes(peers)} among peers`, server > 0 && `${bytes(server)} to the server`];
  const said = parts.filter(Boolean).join(", ");
  return said === "" ? "" : `The wider a line, the more bytes: up to ${said}.`;
}

const COLUMNS = ["Between", "and", "Bytes", "Exchanges", "Round trip", "State"];

function EdgeTable({ edges }: { edges: GraphEdge[] }) {
  return (
    <table className="data-table">
      <thead>
        <tr>
          {COLUMNS.map((title, index) => (
            <th key={title} scope="col" className={index > 1 && index < 5 ? "num" : undefined}>
              {title}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {edges
          .toSorted((a, b) => b.bytes - a.bytes)
          .map((edge) => (
            <tr key={edge.id}>
              <th scope="row">
                <bdi>{visible(edge.from)}</bdi>
              </th>
              <td>{edge.to === SERVER ? "the coordinator" : <bdi>{visible(edge.to)}</bdi>}</td>
              <td className="num">{bytes(edge.bytes)}</td>
              <td className="num">{edge.exchanges === null ? UNKNOWN : count(edge.exchanges)}</td>
              <td className="num">{edge.rtt_ms === null ? UNKNOWN : `${edge.rtt_ms.toFixed(1)} ms`}</td>
              <td>{edge.ghost ? "lost" : (edge.state ?? UNKNOWN)}</td>
            </tr>
          ))}
      </tbody>
    </table>
  );
}
