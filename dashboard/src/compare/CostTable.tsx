import { useEffect, useMemo, useState } from "react";
import { formatBytes, formatCount, formatNumber, formatPercent, UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import { formatDuration } from "../format/time";
import { jobPath, Link, useChoiceParam, useTextParam } from "../router/router";
import { Table, type Column } from "../ui/Table";
import { SORTS, sortRows, type Comparison, type Row, type Sort } from "./comparison";
import { Swatch } from "./Swatch";

interface Props {
  comparison: Comparison;
  /** The run that is highlighted in the charts; empty: none. */
  highlighted: string;
  onHighlight: (name: string) => void;
}

export const targetFormat = ({ rankedBy }: Comparison) =>
  rankedBy === "loss" ? formatNumber : (value: number | undefined) => formatPercent(value);

/** Table of the bytes and time that each run needed to reach the target, as `shoal compare` prints it. */
export function CostTable({ comparison, highlighted, onHighlight }: Props) {
  const [sort, setSort] = useChoiceParam<Sort>("sort", SORTS);
  const { rankedBy, metrics, target, baseline, rows } = comparison;
  const columns = useMemo(() => buildColumns(comparison, highlighted, onHighlight), [comparison, highlighted, onHighlight]);
  if (rankedBy === undefined) return <p className="panel nothing">The runs cannot be ranked: they have no metric in common yet.</p>;
  return (
    <>
      <div className="toolbar">
        <h2>Communication cost</h2>
        <TargetInput target={target} />
      </div>
      <div className="panel">
        <Table
          className="table-wide"
          columns={columns}
          rows={sortRows(rows, sort, rankedBy)}
          rowKey={({ run }) => run.job.name}
          rowAttributes={({ run }) => ({ className: run.job.name === highlighted ? "highlighted" : undefined })}
          sorting={{ by: sort, descending: true, onChange: (by) => setSort(by === sort ? "given" : (by as Sort)) }}
          caption={`${metrics[rankedBy]}; baseline: the bytes of ${baseline}`}
          scroll={{ className: "cost-scroll", label: "Communication cost" }}
          testId="compare-table"
        />
      </div>
    </>
  );
}

function buildColumns(comparison: Comparison, highlighted: string, onHighlight: Props["onHighlight"]): Column<Row>[] {
  const format = targetFormat(comparison);
  const target = format(comparison.target);
  const numeric = true;
  return [
    {
      title: "Run",
      cell: ({ run: { job }, place }) => {
        const isHighlighted = job.name === highlighted;
        return (
          <>
            <button
              type="button"
              className="swatch-button"
              aria-pressed={isHighlighted}
              aria-label={`Highlight ${job.name}`}
              onClick={() => onHighlight(isHighlighted ? "" : job.name)}
            >
              <Swatch run={place} />
            </button>
            <Link href={jobPath(job.name)}>{job.name}</Link>{" "}
            <span className="sub">
              {escapeHidden(job.algorithm)} · {escapeHidden(job.schedule)}
            </span>
          </>
        );
      },
    },
    { title: "Final", sort: "last", numeric, cell: ({ last }) => format(last) },
    { title: "Best", sort: "best", numeric, cell: ({ best }) => format(best) },
    { title: "Synchronizations", term: "synchronization", numeric, cell: ({ syncs }) => formatCount(syncs) },
    { title: "Up", numeric, cell: ({ run }) => formatBytes(run.job.up_bytes) },
    { title: "Down", numeric, cell: ({ run }) => formatBytes(run.job.down_bytes) },
    {
      title: `Bytes to ${target}`,
      sort: "reached",
      numeric,
      cell: ({ reached }) => (reached ? formatBytes(reached.total_bytes) : UNKNOWN),
    },
    { title: `Time to ${target}`, numeric, cell: ({ reached }) => formatDuration(reached?.elapsed_s) },
    { title: "Relative to baseline", sort: "bytes", numeric, cell: ({ ratio }) => formatPercent(ratio) },
  ];
}

/** Input of the target value; it is stored in the address once it is a number. */
function TargetInput({ target }: { target: number | undefined }) {
  const [param, setParam] = useTextParam("target");
  const [text, setText] = useState(param);
  useEffect(() => setText(param), [param]);
  const commit = () => {
    if (text === "" || Number.isFinite(Number(text))) setParam(text.trim());
    else setText(param);
  };
  return (
    <form
      className="target"
      onSubmit={(event) => {
        event.preventDefault();
        commit();
      }}
    >
      <label>
        Target{" "}
        <input
          type="text"
          inputMode="decimal"
          data-testid="target"
          placeholder={target === undefined ? "" : String(Number(target.toPrecision(3)))}
          value={text}
          onChange={(event) => setText(event.target.value)}
          onBlur={commit}
        />
      </label>
    </form>
  );
}
