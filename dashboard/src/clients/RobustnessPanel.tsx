import { useQuery } from "@tanstack/react-query";
import { useState, type CSSProperties } from "react";
import type { NodeInfluence } from "../api/types";
import { formatCount, formatPercent, UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import { Icon } from "../ui/Icon";
import { Table, type Column } from "../ui/Table";
import { influenceQuery } from "./queries";
import { useThrottledRefetch } from "./useThrottledRefetch";

/** Rows shown until the table is expanded. */
const ROWS = 12;

const COLUMNS: Column<NodeInfluence>[] = [
  {
    title: "Node",
    cell: ({ node, limited }) => (
      <>
        <bdi>{escapeHidden(node)}</bdi>
        {limited !== "" && (
          <small className="bad block">
            <Icon name="warning" /> {escapeHidden(limited)}
          </small>
        )}
      </>
    ),
  },
  {
    title: "Weight",
    term: "weight",
    cell: ({ share }) => (
      <>
        <span className="share-bar" style={{ "--share": share } as CSSProperties} /> {formatPercent(share)}
      </>
    ),
  },
  { title: "Max. weight", numeric: true, cell: ({ share_most }) => formatPercent(share_most) },
  { title: "Versions", numeric: true, cell: ({ versions }) => formatCount(versions) },
  {
    title: "Relative norm",
    numeric: true,
    cell: ({ norm_ratio }) => (norm_ratio === null ? UNKNOWN : `${norm_ratio.toFixed(2)} ×`),
  },
  { title: "Refused", numeric: true, isBad: ({ refused }) => refused > 0, cell: ({ refused }) => formatCount(refused) },
];

interface Props {
  job: string;
  /** Changes when there may be new data. */
  trigger: string;
}

/** Each node's weight in the model, and the updates that the job's limits refused. */
export function RobustnessPanel({ job, trigger }: Props) {
  const query = useQuery(influenceQuery(job));
  const { data, refetch } = query;
  const [isExpanded, setIsExpanded] = useState(false);
  useThrottledRefetch(trigger, refetch);
  const nodes = data?.nodes ?? [];
  return (
    <section aria-label="Robustness" data-testid="influence">
      <header className="section-head">
        <h2>Robustness</h2>
        {data && (
          <p className="faint">
            {data.norm_factor === 0
              ? "No limit on the norm of updates"
              : `Updates are refused above ${formatCount(data.norm_factor)} times the median norm`}
            {data.share_max < 1 && `; a node has at most ${formatPercent(data.share_max, 0)} of a version's weight`}.
          </p>
        )}
      </header>
      <div className="panel">
        <Table
          className="table-wide"
          columns={COLUMNS}
          rows={isExpanded ? nodes : nodes.slice(0, ROWS)}
          rowKey={({ node }) => node}
          query={query}
          empty="No update has been accepted or refused yet."
          caption={data && <span className="visually-hidden">Weight of each node over the newest {formatCount(data.versions)} versions</span>}
          scroll={{}}
        />
        {nodes.length > ROWS && (
          <button type="button" className="quiet-button" onClick={() => setIsExpanded(!isExpanded)}>
            {isExpanded ? "Show fewer" : `Show all ${formatCount(nodes.length)} nodes`}
          </button>
        )}
      </div>
    </section>
  );
}
