import { useLayoutEffect, useMemo, useRef, useState, type KeyboardEvent, type PointerEvent } from "react";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { useTokens } from "../charts/tokens";
import { formatReportMetric, reportChartTitle, reportMetricTitle } from "../domain/reportMetrics";
import type { Unit } from "../domain/unit";
import { DIVERGED, formatCount, plural } from "../format/number";
import { capitalize, escapeHidden } from "../format/text";
import { Table, type Column } from "../ui/Table";
import { useWidth } from "../ui/useWidth";
import { colorScale } from "./colorScale";
import { drawHeatMap } from "./drawHeatMap";
import { BAD, cellAt, summarizeClients, toGrid, type Grid, type HeatMapData, type Summary } from "./heatMapData";

interface Props {
  data: HeatMapData;
  metric: string;
  unit: Unit;
  /** The selected client; "": none. */
  selected: string;
  onSelect: (node: string) => void;
}

interface CellPosition {
  row: number;
  column: number;
}

/** Lengths in px. */
const HEIGHT_MAX = 420;
const ROW_MIN = 2;
const ROW_MAX = 18;
const NAMES_WIDTH = 118;
const NARROW = 560;
const NAME_HEIGHT = 11;
/** Rows that Page Up and Page Down skip. */
const PAGE = 10;

/** Heat map: clients are rows, rounds are columns, values are colors. */
export function HeatMap({ data, metric, unit, selected, onSelect }: Props) {
  const grid = useMemo(() => toGrid(data), [data]);
  const height = grid.nodes.length * rowHeight(grid);
  const hidden = data.nodes - grid.nodes.length;
  return (
    <ChartFrame
      title={`${reportChartTitle(metric)} by node and ${unit}`}
      testId="heat"
      label={null}
      height={Math.max(height, 120)}
      empty={grid.rounds.length === 0 ? "No node has reported this metric yet." : null}
      legend={<Legend grid={grid} metric={metric} hidden={hidden} />}
      plot={<HeatMapCanvas grid={grid} metric={metric} unit={unit} selected={selected} onSelect={onSelect} />}
      table={() => <SummaryTable grid={grid} metric={metric} />}
      csv={() => heatMapCsv(grid, unit)}
    />
  );
}

const rowHeight = (grid: Grid): number =>
  Math.max(ROW_MIN, Math.min(ROW_MAX, Math.floor(HEIGHT_MAX / Math.max(1, grid.nodes.length))));

export const heatMapCsv = (grid: Grid, unit: Unit): string =>
  toCsv(
    ["node", ...grid.rounds.map((round) => `${unit} ${round}`)],
    grid.nodes.map((node, row) => [node, ...grid.rounds.map((_, column) => cellAt(grid, row, column))]),
  );

function Legend({ grid, metric, hidden }: { grid: Grid; metric: string; hidden: number }) {
  return (
    <>
      <span className="readout-item heat-scale">
        {formatReportMetric(metric, grid.low)} <i className="heat-ramp" aria-hidden="true" /> {formatReportMetric(metric, grid.high)}
      </span>
      {grid.kinds.includes(BAD) && (
        <span className="readout-item">
          <i className="swatch block heat-bad" /> {DIVERGED}
        </span>
      )}
      <span className="readout-place">
        {plural(grid.nodes.length, "node")}
        {hidden > 0 && ` of ${formatCount(grid.nodes.length + hidden)}`} × {plural(grid.rounds.length, "column")}
      </span>
    </>
  );
}

/** The canvas with a cursor that follows the pointer and the arrow keys. */
function HeatMapCanvas({ grid, metric, unit, selected, onSelect }: Omit<Props, "data"> & { grid: Grid }) {
  const tokens = useTokens();
  const host = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [position, setPosition] = useState<CellPosition | null>(null);
  const width = useWidth(host);
  const row = rowHeight(grid);
  const left = width < NARROW ? 0 : NAMES_WIDTH;
  const box = { left: 0, top: 0, width: Math.max(1, width - left), height: row * grid.nodes.length };
  const style = useMemo(
    () => ({ scale: colorScale(tokens.heat), bad: tokens.bad, ink: tokens.surface, font: tokens.font }),
    [tokens],
  );
  useLayoutEffect(() => {
    if (canvas.current === null || width === 0) return;
    performance.clearMeasures("heat map");
    const start = performance.now();
    drawHeatMap(canvas.current, grid, style, box);
    performance.measure("heat map", { start });
    // The box follows from the width and the grid.
  }, [grid, style, width]);

  const columns = grid.rounds.length;
  const positionAt = (event: PointerEvent): CellPosition => {
    const area = event.currentTarget.getBoundingClientRect();
    const column = Math.floor(((event.clientX - area.left) / area.width) * columns);
    return { row: clamp(Math.floor((event.clientY - area.top) / row), grid.nodes.length), column: clamp(column, columns) };
  };
  const select = (index: number) => {
    const node = grid.nodes[index] ?? "";
    onSelect(node === selected ? "" : node);
  };
  const handleKey = (event: KeyboardEvent) => {
    const current = position ?? { row: 0, column: columns - 1 };
    if (event.key === "Enter" || event.key === " ") select(current.row);
    else if (event.key === "Escape") onSelect("");
    else {
      const next = nextCell(current, event.key, grid);
      if (next === null) return;
      setPosition(position === null ? current : next);
    }
    event.preventDefault();
  };
  const shown = position !== null && position.row < grid.nodes.length && position.column < columns ? position : null;
  return (
    <div className="heat" ref={host} style={{ gridTemplateColumns: left === 0 ? "1fr" : `${NAMES_WIDTH}px 1fr` }}>
      {left > 0 && <Names grid={grid} row={row} selected={selected} />}
      <div
        className="heat-cells"
        tabIndex={0}
        role="application"
        aria-roledescription="heat map"
        aria-label={`${reportMetricTitle(metric)} by node and ${unit}: arrow keys move, Enter selects a node`}
        aria-describedby="heat-here"
        data-testid="heat-cells"
        style={{ height: box.height }}
        onKeyDown={handleKey}
        onPointerMove={(event) => setPosition(positionAt(event))}
        onPointerLeave={() => setPosition(null)}
        onClick={() => position && select(position.row)}
      >
        <canvas ref={canvas} aria-hidden="true" style={{ width: box.width, height: box.height }} />
        {shown && (
          <i
            className="heat-cursor"
            style={{
              left: `${(100 * shown.column) / columns}%`,
              top: shown.row * row,
              width: `max(3px, ${100 / columns}%)`,
              height: row,
            }}
          />
        )}
      </div>
      <p className="heat-here" id="heat-here" aria-live="polite" data-testid="heat-here">
        {shown === null ? (
          <span className="faint">Point at a cell or use the arrow keys. Click or press Enter to select a node.</span>
        ) : (
          <CellDescription grid={grid} position={shown} metric={metric} unit={unit} />
        )}
      </p>
    </div>
  );
}

const clamp = (value: number, size: number): number => Math.max(0, Math.min(size - 1, value));

/** Return the cell to which a key moves; null if the key does not move. */
export function nextCell(position: CellPosition, key: string, grid: Pick<Grid, "nodes" | "rounds">): CellPosition | null {
  const steps: Record<string, [number, number]> = {
    ArrowUp: [-1, 0],
    ArrowDown: [1, 0],
    ArrowLeft: [0, -1],
    ArrowRight: [0, 1],
    PageUp: [-PAGE, 0],
    PageDown: [PAGE, 0],
    Home: [0, -Infinity],
    End: [0, Infinity],
  };
  const step = steps[key];
  if (step === undefined) return null;
  return { row: clamp(position.row + step[0], grid.nodes.length), column: clamp(position.column + step[1], grid.rounds.length) };
}

interface CellDescriptionProps {
  grid: Grid;
  position: CellPosition;
  metric: string;
  unit: Unit;
}

function CellDescription({ grid, position: { row, column }, metric, unit }: CellDescriptionProps) {
  const value = cellAt(grid, row, column);
  const from = grid.rounds[column] ?? 0;
  const rounds = grid.step === 1 ? formatCount(from) : `${formatCount(from)}–${formatCount(from + grid.step - 1)}`;
  return (
    <>
      <bdi>{escapeHidden(grid.nodes[row] ?? "")}</bdi> · {unit} {rounds} ·{" "}
      <b className={value !== null && !Number.isFinite(value) ? "bad" : ""}>
        {value === null ? "no report" : formatReportMetric(metric, value)}
      </b>
    </>
  );
}

/** Names of the rows, as many as there is space for. */
function Names({ grid, row, selected }: { grid: Grid; row: number; selected: string }) {
  const every = Math.ceil(NAME_HEIGHT / row);
  return (
    <ul className="heat-names" aria-hidden="true">
      {grid.nodes.map(
        (node, index) =>
          (index % every === 0 || node === selected) && (
            <li key={node} style={{ top: index * row, height: row * every }} className={node === selected ? "own" : ""}>
              <bdi>{escapeHidden(node)}</bdi>
            </li>
          ),
      )}
    </ul>
  );
}

function SummaryTable({ grid, metric }: { grid: Grid; metric: string }) {
  const column = (title: string, field: "newest" | "mean" | "low" | "high"): Column<Summary> => ({
    title,
    numeric: true,
    cell: (summary) => formatReportMetric(metric, summary[field]),
  });
  const columns: Column<Summary>[] = [
    { title: "Node", cell: ({ node }) => <bdi>{escapeHidden(node)}</bdi> },
    column("Newest", "newest"),
    column("Mean", "mean"),
    column("Min", "low"),
    column("Max", "high"),
    {
      title: capitalize(DIVERGED),
      numeric: true,
      isBad: ({ diverged }) => diverged > 0,
      cell: ({ diverged }) => formatCount(diverged),
    },
  ];
  return <Table columns={columns} rows={summarizeClients(grid)} rowKey={({ node }) => node} />;
}
