import { useMemo } from "react";
import type { JobNode } from "../api/types";
import { Sparkline } from "../charts/Sparkline";
import { pickMetric } from "../domain/metrics";
import { formatBytes, formatCount, formatNumber, formatPercent, plural, UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import { formatAgo, formatDuration } from "../format/time";
import { useNow } from "../live/useNow";
import { useChoiceParam } from "../router/router";
import { NodeNameCell } from "../ui/NodeNameCell";
import { Progress } from "../ui/Progress";
import type { QueryState } from "../ui/QueryStatus";
import { StateBadge } from "../ui/StateBadge";
import { Table, type Column } from "../ui/Table";
import { secondsSilent, sortNodes, SORTS, summarizeNodes, type Sort } from "./sortNodes";

interface Props {
  nodes: JobNode[];
  query: QueryState;
  /** True if the job uses dynamic averaging. */
  dynamic: boolean;
  /** True if the job has ended, so that its nodes are no longer heard. */
  ended: boolean;
}

/** Table of a job's nodes. */
export function NodesTable({ nodes, dynamic, ended, query }: Props) {
  const [sort, setSort] = useChoiceParam<Sort>("sort", SORTS);
  const rows = useMemo(() => sortNodes(nodes, sort), [nodes, sort]);
  const columns = useMemo(() => buildColumns(dynamic, ended), [dynamic, ended]);
  return (
    <section className="nodes" aria-label="Nodes">
      <header className="section-head">
        <h2>Nodes</h2>
        {nodes.length > 0 && <p className="summary">{summarizeNodes(nodes)}</p>}
      </header>
      <div className="panel">
        <Table
          layout="cards"
          columns={columns}
          rows={rows}
          rowKey={({ name }) => name}
          rowAttributes={rowAttributes}
          query={query}
          empty={
            <>
              No node has joined this job yet. Add one with <code>shoal join URL --token …</code>
            </>
          }
          sorting={{ by: sort, descending: sort !== "name" && sort !== "state", onChange: (by) => setSort(by as Sort) }}
          scroll={{}}
          virtual
          testId="nodes-table"
        />
      </div>
    </section>
  );
}

const rowAttributes = ({ name, state }: JobNode) => ({ "data-testid": `node-row-${name}`, "data-state": state });

const isDiverged = (value: number | undefined) => value !== undefined && !Number.isFinite(value);

/** With dynamic averaging, the loss of the newest batches says more than that of held-out data. */
const lossOf = (node: JobNode, dynamic: boolean): number | undefined =>
  (dynamic ? node.metrics["train/loss"] : undefined) ?? pickMetric("loss", node.metrics);

function buildColumns(dynamic: boolean, ended: boolean): Column<JobNode>[] {
  const numeric = true;
  return [
    { title: "Node", sort: "name", className: "node-cell-name", cell: (node) => <NameCell node={node} /> },
    { title: "State", term: "node state", sort: "state", className: "node-cell-state", unlabeled: true, cell: (node) => <StateCell node={node} /> },
    { title: "Local training", className: "node-cell-progress", cell: (node) => <ProgressCell node={node} /> },
    { title: "Reports", term: "report", sort: "reports", numeric, cell: ({ reports }) => formatCount(reports) },
    {
      title: "Loss",
      sort: "loss",
      numeric,
      isBad: (node) => isDiverged(lossOf(node, dynamic)),
      cell: (node) => (
        <span className="spark-pair">
          {node.losses.length > 2 && <Sparkline values={node.losses} width={52} height={18} />}
          {formatNumber(lossOf(node, dynamic))}
        </span>
      ),
    },
    {
      title: "Accuracy",
      sort: "accuracy",
      numeric,
      isBad: ({ metrics }) => isDiverged(pickMetric("accuracy", metrics)),
      cell: ({ metrics }) => formatPercent(pickMetric("accuracy", metrics)),
    },
    // Dynamic averaging has no rounds to wait for; the distance from the reference model matters instead.
    dynamic
      ? {
          title: "Divergence",
          term: "divergence",
          sort: "divergence",
          numeric,
          isBad: ({ metrics }) => isDiverged(metrics["train/divergence"]),
          cell: ({ metrics }) => formatNumber(metrics["train/divergence"]),
        }
      : { title: "Duration", sort: "seconds", numeric, cell: ({ seconds }) => formatDuration(seconds) },
    { title: "Up", sort: "up", numeric, cell: ({ up_bytes }) => formatBytes(up_bytes) },
    { title: "Down", sort: "down", numeric, cell: ({ down_bytes }) => formatBytes(down_bytes) },
    { title: "Last seen", sort: "seen", numeric, cell: (node) => (ended ? UNKNOWN : <LastSeen node={node} />) },
    { title: "Last error", sort: "failures", className: "node-cell-error", cell: (node) => <ErrorCell node={node} /> },
  ];
}

function NameCell({ node }: { node: JobNode }) {
  const { device, torch } = node.info;
  return (
    <NodeNameCell name={node.name}>
      {node.excluded_text !== ""
        ? `excluded: ${escapeHidden(node.excluded_text)}`
        : [device, torch && `torch ${String(torch)}`].filter(Boolean).map(String).map(escapeHidden).join(" · ")}
    </NodeNameCell>
  );
}

function StateCell({ node }: { node: JobNode }) {
  return (
    <>
      <StateBadge state={node.state} />
      {node.is_gossiping && (
        <span className="badge gossip" title="In gossip mode with its peers">
          Gossip
        </span>
      )}
      {node.resting && (
        <span className="badge" title="It caused several synchronizations in a row, so it is not asked for a while">
          Set aside
        </span>
      )}
    </>
  );
}

function ProgressCell({ node }: { node: JobNode }) {
  if (node.progress === null) return <span className="faint">{UNKNOWN}</span>;
  return (
    <span className="progress-pair">
      <Progress value={node.progress} label={`${node.name}: local training`} tone="running" />
      <span>{formatPercent(node.progress, 0)}</span>
    </span>
  );
}

/** The time since the node was last seen. It follows the clock by itself, so that the rest of the row is not rendered again. */
function LastSeen({ node }: { node: JobNode }) {
  const seconds = secondsSilent(node, useNow());
  return seconds === null ? UNKNOWN : formatAgo(seconds);
}

function ErrorCell({ node }: { node: JobNode }) {
  if (node.last_error === null) return <span className="faint">{UNKNOWN}</span>;
  return (
    <span className="error-text" title={escapeHidden(node.last_error)}>
      {node.failures > 0 && <b>{plural(node.failures, "failure")}: </b>}
      <bdi>{escapeHidden(node.last_error)}</bdi>
    </span>
  );
}
