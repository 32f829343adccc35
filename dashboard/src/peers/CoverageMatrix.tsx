import { useMemo, useState, type PointerEvent } from "react";
import type { Peer } from "../api/types";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { formatCount, formatPercent, UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import { Table, type Column } from "../ui/Table";
import { coverage, levelPaths, share, type Coverage } from "./coverage";

const HEIGHT = 168;
const CELL = 10;
const GAP = 1;

interface Cell {
  row: number;
  column: number;
}

/** Matrix of the local rounds that each model contains: a row per model, a column per node that made the rounds. */
export function CoverageMatrix({ peers }: { peers: Peer[] }) {
  const matrix = useMemo(() => coverage(peers), [peers]);
  const paths = useMemo(() => levelPaths(matrix, CELL, GAP), [matrix]);
  const [cell, setCell] = useState<Cell | null>(null);
  const side = matrix.names.length * CELL;
  const hasRounds = matrix.rounds.some((rounds) => rounds > 0);
  const handleMove = (event: PointerEvent<SVGSVGElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    const indexAt = (at: number) => Math.min(matrix.names.length - 1, Math.max(0, Math.floor(at * matrix.names.length)));
    setCell({ row: indexAt((event.clientY - box.top) / box.height), column: indexAt((event.clientX - box.left) / box.width) });
  };
  return (
    <ChartFrame
      title="Update coverage by model and node (share of rounds)"
      testId="coverage"
      label={describe(matrix)}
      height={HEIGHT}
      empty={hasRounds ? null : "No node has trained in gossip mode yet."}
      legend={cell !== null && cell.row < matrix.names.length ? describeCell(matrix, cell) : <Scale />}
      plot={
        <div className="coverage-place">
          <span className="coverage-axis">rounds of →</span>
          <span className="coverage-axis down">model of →</span>
          <svg
            className="coverage"
            viewBox={`0 0 ${side} ${side}`}
            aria-hidden="true"
            onPointerMove={handleMove}
            onPointerLeave={() => setCell(null)}
          >
            <rect width={side} height={side} className="coverage-none" />
            {paths.map((path, level) => (
              <path key={level} d={path} className={`coverage-${level}`} />
            ))}
          </svg>
        </div>
      }
      table={() => <CoverageTable coverage={matrix} />}
      csv={() =>
        toCsv(
          ["model of", ...matrix.names],
          matrix.names.map((name, row) => [name, ...matrix.names.map((_, column) => share(matrix, row, column))]),
        )
      }
    />
  );
}

function Scale() {
  return (
    <>
      {["under ¼", "¼", "½", "¾", "all"].map((label, level) => (
        <span key={label} className="readout-item">
          <i className={`swatch block coverage-${level}`} />
          {label}
        </span>
      ))}
    </>
  );
}

function describeCell({ names, rounds, held }: Coverage, { row, column }: Cell): string {
  const [model, node] = [escapeHidden(names[row] ?? ""), escapeHidden(names[column] ?? "")];
  return `model of ${model}: ${formatCount(held[row]?.[column] ?? 0)} of ${formatCount(rounds[column] ?? 0)} rounds of ${node}`;
}

function describe(matrix: Coverage): string {
  const means = matrix.names.map((name, row): [string, number] => {
    const shares = matrix.names.map((_, column) => share(matrix, row, column)).filter((one) => one !== null);
    return [name, shares.reduce((sum, one) => sum + one, 0) / Math.max(1, shares.length)];
  });
  const [name, least] = means.sort(([, a], [, b]) => a - b)[0] ?? ["", 1];
  return `Update coverage of ${matrix.names.length} models; the model of ${escapeHidden(name)} covers the least, ${formatPercent(least, 0)}`;
}

function CoverageTable({ coverage: matrix }: { coverage: Coverage }) {
  const columns: Column<number>[] = [
    { title: "Model of", cell: (row) => escapeHidden(matrix.names[row] ?? "") },
    ...matrix.names.map((name, column): Column<number> => ({
      title: `rounds of ${name}`,
      heading: escapeHidden(name),
      numeric: true,
      cell: (row) => {
        const part = share(matrix, row, column);
        return part === null ? UNKNOWN : formatPercent(part, 0);
      },
    })),
  ];
  return <Table columns={columns} rows={matrix.names.map((_, row) => row)} rowKey={(row) => row} />;
}
