import { useMemo, useRef } from "react";
import type { JobNode } from "../api/types";
import { useNow } from "../live/useNow";
import { useChoice } from "../router";
import { Icon } from "../ui/Icon";
import { Room } from "../ui/Room";
import { useRows } from "../ui/useRows";
import { Unanswered, type Question } from "../ui/Unanswered";
import { NodeRow } from "./NodeRow";
import { countNodes, silence, sortNodes, SORTS, type Sort } from "./nodeOrder";

interface Column {
  sort: Sort | null;
  title: string;
  className?: string;
}

const COLUMNS: Column[] = [
  { sort: "name", title: "Node" },
  { sort: "state", title: "State" },
  { sort: null, title: "Local training" },
  { sort: "reports", title: "Reports", className: "num" },
  { sort: "loss", title: "Loss", className: "num" },
  { sort: "accuracy", title: "Accuracy", className: "num" },
  { sort: "seconds", title: "Took", className: "num" },
  { sort: "up", title: "Up", className: "num" },
  { sort: "down", title: "Down", className: "num" },
  { sort: "seen", title: "Last seen", className: "num" },
  { sort: "failures", title: "Last error" },
];

/** Nobody waits for a node that speaks when it must; how far it has drifted says more than how long it took. */
const DYNAMIC: Column[] = COLUMNS.map((column) =>
  column.sort === "seconds" ? { sort: "gap", title: "Gap", className: "num" } : column,
);

interface Props {
  nodes: JobNode[];
  answer: Question;
  /** Whether models are synchronised only when they have drifted apart. */
  dynamic: boolean;
  /** Once the job has ended, nobody listens for its nodes any more. */
  ended: boolean;
}

export function NodesTable({ nodes, dynamic, ended, answer }: Props) {
  const now = useNow();
  const [sort, setSort] = useChoice<Sort>("sort", SORTS);
  const sorted = useMemo(() => sortNodes(nodes, sort), [nodes, sort]);
  const body = useRef<HTMLTableSectionElement>(null);
  const rows = useRows(sorted.length, body);
  return (
    <section className="nodes" aria-label="Nodes">
      <header className="section-head">
        <h2>Nodes</h2>
        {nodes.length > 0 && <p className="summary">{countNodes(nodes)}</p>}
      </header>
      <div className="panel">
        {answer.data === undefined ? (
          <Unanswered question={answer} lines={4} />
        ) : nodes.length === 0 ? (
          <p className="nothing">
            No node has joined this job yet. A node joins with <code>shoal join URL --token …</code>
          </p>
        ) : (
          <div className="table-scroll">
            <table className="nodes-table" role="table" aria-rowcount={sorted.length + 1} data-testid="nodes-table">
              <thead role="rowgroup">
                <tr role="row">
                  {(dynamic ? DYNAMIC : COLUMNS).map((column) => (
                    <Heading key={column.title} {...column} current={sort} onSort={setSort} />
                  ))}
                </tr>
              </thead>
              <tbody role="rowgroup" ref={body}>
                <Room height={rows.before} />
{sorted.slice(rows.from, rows.to).map((node) => (
                  <NodeRow
                    key={node.name}
                    node={node}
                    dynamic={dynamic}
                    silent={ended ? null : silence(node, now)}
                  />
                ))}
                <Room height={rows.after} />
              </tbody>
            </table>
          </div>
        )}
      </div>
    </section>
  );
}

interface HeadingProps {
  sort: Sort | null;
  title: string;
  className?: string;
  current: Sort;
  onSort: (sort: Sort) => void;
}

function Heading({ sort, title, className, current, onSort }: HeadingProps) {
  if (sort === null)
    return (
      <th role="columnheader" scope="col" className={className}>
        {title}
      </th>
    );
  const own = sort === current;
  const direction = sort === "name" || sort === "state" ? "ascending" : "descending";
  return (
    <th role="columnheader" scope="col" className={className} aria-sort={own ? direction : undefined}>
      <button type="button" className="sort-button" onClick={() => onSort(sort)}>
        {title}
        {own && <Icon name="sort" />}
      </button>
    </th>
  );
}
