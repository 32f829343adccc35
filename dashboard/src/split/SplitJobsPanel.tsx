import type { SplitJob } from "../api/types";
import { formatBytes, formatCount, formatNumber, UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import { Link, splitJobPath } from "../router/router";
import { StateBadge } from "../ui/StateBadge";
import { Table, type Column } from "../ui/Table";
import { turnsText, upAndDown } from "./stepBytes";
import "../styles/split.css";

const COLUMNS: Column<SplitJob>[] = [
  { title: "Job", cell: ({ name }) => <Link href={splitJobPath(name)}>{escapeHidden(name)}</Link> },
  { title: "State", cell: ({ state }) => <StateBadge state={state} /> },
  { title: "Round", numeric: true, cell: ({ round, spec }) => `${formatCount(round)} of ${formatCount(Number(spec["rounds"]))}` },
  { title: "Loss", numeric: true, cell: ({ metrics }) => formatNumber(metrics["train/loss"]) },
  { title: "Turn", cell: (job) => <bdi>{escapeHidden(turnsText(job)) || UNKNOWN}</bdi> },
  { title: "Bytes of a step", numeric: true, cell: ({ step_up_bytes, step_down_bytes }) => upAndDown(step_up_bytes, step_down_bytes) },
  { title: "Up", numeric: true, cell: ({ up_bytes }) => formatBytes(up_bytes) },
  { title: "Down", numeric: true, cell: ({ down_bytes }) => formatBytes(down_bytes) },
];

/** Section of the split jobs that this coordinator serves; hidden without any. */
export function SplitJobsPanel({ jobs }: { jobs: SplitJob[] }) {
  if (jobs.length === 0) return null;
  return (
    <section aria-label="Split jobs" className="split-jobs">
      <header className="section-head">
        <h2>Split jobs</h2>
      </header>
      <div className="panel">
        <Table
          className="table-wide"
          columns={COLUMNS}
          rows={jobs}
          rowKey={({ name }) => name}
          scroll={{ label: "Table of split jobs" }}
          testId="split-jobs"
        />
      </div>
    </section>
  );
}
