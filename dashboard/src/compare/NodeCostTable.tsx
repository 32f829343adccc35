import { useQueries } from "@tanstack/react-query";
import { formatBytes, UNKNOWN } from "../format/number";
import { trafficQuery } from "../queries/jobs";
import { Table, type Column } from "../ui/Table";
import type { Comparison } from "./comparison";
import { targetFormat } from "./CostTable";
import { nodeCosts, type NodeCost } from "./nodeCosts";
import { Swatch } from "./Swatch";

/** With more runs, only the nodes of the highlighted run are shown. */
const RUNS_MAX = 8;

interface Row extends NodeCost {
  run: string;
  place: number;
}

/** Table of the bytes that each node sent and received, in total and until its run reached the target. */
export function NodeCostTable({ comparison, highlighted }: { comparison: Comparison; highlighted: string }) {
  const chosen = comparison.rows.filter(({ run }) => run.job.name === highlighted);
  const shown = chosen.length > 0 ? chosen : comparison.rows.length <= RUNS_MAX ? comparison.rows : [];
  const traffic = useQueries({ queries: shown.map(({ run }) => trafficQuery(run.job)) });
  if (comparison.rankedBy === undefined) return null;
  if (shown.length === 0) return <p className="sub">Click a run's color to see its bytes by node.</p>;
  const rows = shown.flatMap(({ run, place, reached }, index) =>
    nodeCosts(traffic[index]?.data ?? [], reached?.version).map((cost): Row => ({ run: run.job.name, place, ...cost })),
  );
  const target = targetFormat(comparison)(comparison.target);
  const untilTarget = (bytesOf: (cost: { up: number; down: number }) => number) => (row: Row) =>
    row.untilTarget ? formatBytes(bytesOf(row.untilTarget)) : UNKNOWN;
  const columns: Column<Row>[] = [
    {
      title: "Run",
      cell: ({ run, place }) => (
        <>
          <Swatch run={place} />
          {run}
        </>
      ),
    },
    { title: "Node", cell: ({ node }) => (node === "" ? "(no node)" : node) },
    { title: "Up", numeric: true, cell: ({ up }) => formatBytes(up) },
    { title: "Down", numeric: true, cell: ({ down }) => formatBytes(down) },
    { title: `Up to ${target}`, numeric: true, cell: untilTarget(({ up }) => up) },
    { title: `Down to ${target}`, numeric: true, cell: untilTarget(({ down }) => down) },
    { title: `Bytes to ${target}`, numeric: true, cell: untilTarget(({ up, down }) => up + down) },
  ];
  return (
    <div className="panel">
      <Table
        className="table-wide"
        columns={columns}
        rows={rows}
        rowKey={({ run, node }) => `${run} ${node}`}
        caption="By node, including headers and polls"
        scroll={{ className: "cost-scroll", label: "Communication cost by node" }}
        testId="compare-nodes"
      />
    </div>
  );
}
