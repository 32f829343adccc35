import { useQuery } from "@tanstack/react-query";
import { useMemo, useRef } from "react";
import { kindsQuery, peersQuery } from "../api/queries";
import type { Job, JobNode, JobPeers, Peer } from "../api/types";
import { useZoom } from "../charts/zoom";
import { bytes, count, plural, UNKNOWN } from "../format/number";
import { Stat } from "../job/Headline";
import { hasGossiped } from "../job/moves";
import { hasEnded } from "../jobs/order";
import { useNow } from "../live/useNow";
import { Unanswered } from "../ui/Unanswered";
import { CoverageMatrix } from "./CoverageMatrix";
import { graph, type Graph } from "./graph";
import { HistoryChart, MEASURES, SYNC } from "./HistoryChart";
import { PeersTable } from "./PeersTable";
import { Refusals } from "./Refusals";
import { isOut, silent } from "./standing";
import { traded, withServer } from "./tally";
import { Topology } from "./Topology";
import "../styles/peers.css";

const NONE: never[] = [];
const FIGURES = ["accuracy", "loss", "consensus", "residual", "coverage"] as const;
/** What was measured of models comes first, and only where it was. */
const MEASURED = ["accuracy", "loss"] as const;
const CURVES = ["consensus", "residual", "coverage"] as const;

interface Props {
  job: Job;
  nodes: JobNode[];
}

/** A job's nodes as each other's peers. */
export function PeersPanel({ job, nodes }: Props) {
  const question = useQuery(peersQuery(job.name));
  const { data } = question;
  const clock = useNow();
  const now = hasEnded(job) ? null : clock;
  if (data === undefined) return <Unanswered question={question} />;
  return <Known job={job} nodes={nodes} view={data} now={now} />;
}

/** The nodes of a job that its server never leaves. */
export function ServerPanel({ job, nodes }: Props) {
  const clock = useNow();
  const now = hasEnded(job) ? null : clock;
  const { data: traffic = NONE } = useQuery(kindsQuery(job));
  const served = useMemo(() => withServer(traffic), [traffic]);
  const drawn = useGraph(nodes, NONE, served, now);
  if (nodes.length === 0) return null;
  return (
    <div className="panel">
      <Topology job={job} graph={drawn} now={now} />
    </div>
  );
}

function Known({ job, nodes, view, now }: Props & { view: JobPeers; now: number | null }) {
  const { data: traffic = NONE } = useQuery(kindsQuery(job));
  const served = useMemo(() => withServer(traffic), [traffic]);
  const zoom = useZoom("zoom.peers", SYNC);
  const drawn = useGraph(nodes, view.peers, served, now);
  const told = view.peers.some((peer) => peer.told_at !== null);
  const been = view.history.length > 0 || drawn.nodes.some(({ standing }) => isOut(standing));
  return (
    <section className="peers" aria-label="Peers" data-testid="peers">
      {been && (
        <div className="toolbar">
          <h2>Peers</h2>
        </div>
      )}
      {been && <Figures view={view} graph={drawn} />}
      <div className="panel">
        <Topology job={job} graph={drawn} now={now} />
      </div>
      {view.peers.length === 0 && !hasEnded(job) && <NoPeers />}
      {been && (
        <div className="pair">
          {[...MEASURED.filter((what) => view.history.some((point) => (point[what] ?? null) !== null)), ...CURVES].map((what) => (
            <div key={what} className="panel">
              <HistoryChart what={what} history={view.history} zoom={zoom} />
            </div>
          ))}
          <div className="panel">
            <CoverageMatrix peers={view.peers} />
          </div>
        </div>
      )}
      {told && (been || hasGossiped(job)) && <Refusals peers={view.peers} />}
      {told && (been || hasGossiped(job)) && <PeersTable nodes={drawn.nodes} now={now} />}
    </section>
  );
}

/** The same graph until somebody tells something new, or falls silent. */
function useGraph(nodes: JobNode[], peers: Peer[], served: Map<string, number>, now: number | null): Graph {
  const missing = silent(peers, now);
  const clock = useRef(now);
  clock.current = now;
  return useMemo(() => (void missing, graph(nodes, peers, served, clock.current)), [nodes, peers, served, missing]);
}

function Figures({ view, graph: { nodes } }: { view: JobPeers; graph: Graph }) {
  const { now, peers } = view;
  const out = nodes.filter(({ standing }) => isOut(standing)).length;
  const sums = peers.map(traded);
  const sent = sums.reduce((sum, one) => sum + one.sent, 0);
  const received = sums.reduce((sum, one) => sum + one.received, 0);
  return (
    <dl className="panel peer-figures">
      <Stat name="Carry on" more={out === 0 ? "all are at the server" : `of ${plural(nodes.length, "node")}`}>
        <span className="stat-value" data-testid="peers-out">
          {count(out)}
        </span>
      </Stat>
      {FIGURES.map((what) => (
        <Stat key={what} name={MEASURES[what].title} more={MEASURES[what].means}>
          <span className="stat-value" data-testid={`peers-${what}`}>
            {(now?.[what] ?? null) === null ? UNKNOWN : MEASURES[what].write(now?.[what])}
          </span>
        </Stat>
      ))}
      <Stat name="Bytes among peers" more={`sent; ${bytes(received)} received`}>
        <span className="stat-value">{bytes(sent)}</span>
      </Stat>
    </dl>
  );
}

function NoPeers() {
  return (
    <p className="panel nothing">
      No node can carry on with others yet: none has said where its peers reach it. A node does with{" "}
      <code>shoal join URL --peer-listen HOST:PORT</code>
    </p>
  );
}
