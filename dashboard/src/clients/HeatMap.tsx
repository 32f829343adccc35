import { useLayoutEffect, useMemo, useRef, useState, type KeyboardEvent, type PointerEvent } from "react";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { useTokens } from "../charts/tokens";
import { count, DIVERGED, plural } from "../format/number";
import { visible } from "../format/text";
import { capital, type Unit } from "../format/unit";
import { useWidth } from "../ui/useWidth";
import { ramp } from "./colours";
import { drawHeat } from "./draw";
import { cellOf, gridOf, summaries, type Grid, type Heat } from "./heat";
import { titleOf, write } from "./quantity";

interface Props {
  heat: Heat;
  metric: string;
  unit: Unit;
  /** The client that is looked at alone; "": none. */
  isolated: string;
  onIsolate: (node: string) => void;
}

interface Spot {
  row: number;
  column: number;
}

const HEIGHT_MAX = 420;
const ROW_MIN = 2;
const ROW_MAX = 18;
const NAMES = 118;
const NARROW = 560;
/** A name needs so much room. */
const NAME_ROW = 11;
const PAGE = 10;

/** Clients under each other, rounds beside each other, the value as a colour. */
export function HeatMap({ heat, metric, unit, isolated, onIsolate }: Props) {
  const grid = useMemo(() => gridOf(heat), [heat]);
  const [spot, setSpot] = useState<Spot | null>(null);
  const height = grid.nodes.length * rowHeight(grid);
  const hidden = heat.nodes - grid.nodes.length;
  return (
    <ChartFrame
      title={titleOf(metric)}
      testId="heat"
      label={null}
      height={Math.max(height, 120)}
      empty={grid.rounds.length === 0 ? "No client has reported this yet." : null}
      readout={<Legend grid={grid} metric={metric} hidden={hidden} />}
      plot={
        <Picture grid={grid} metric={metric} unit={unit} spot={spot} onSpot={setSpot} isolated={isolated} onIsolate={onIsolate} />
      }
      table={() => <SummaryTable grid={grid} metric={metric} />}
      csv={() => heatCsv(grid, unit)}
    />
  );
}

const rowHeight = (grid: Grid): number =>
  Math.max(ROW_MIN, Math.min(ROW_MAX, Math.floor(HEIGHT_MAX / Math.max(1, grid.nodes.length))));

export const heatCsv = (grid: Grid, unit: Unit): string =>
  toCsv(
    ["client", ...grid.rounds.map((round) => `${unit} ${round}`)],
    grid.nodes.map((node, row) => [node, ...grid.rounds.map((_, column) => cellOf(grid, row, column))]),
  );

function Legend({ grid, metric, hidden }: { grid: Grid; metric: string; hidden: number }) {
  const some = grid.kinds.includes(2);
  return (
    <>
      <span className="readout-item heat-scale">
        {write(metric, grid.low)} <i className="heat-ramp" aria-hidden="true" /> {write(metric, grid.high)}
      </span>
      {some && (
        <span className="readout-item">
          <i className="swatch block heat-bad" /> {DIVERGED}
        </span>
      )}
      <span className="readout-place">
        {plural(grid.nodes.length, "client")}
        {hidden > 0 && ` of ${count(grid.nodes.length + hidden)}`} × {plural(grid.rounds.length, "column")}
      </span>
    </>
  );
}

interface PictureProps extends Omit<Props, "heat"> {
  grid: Grid;
  spot: Spot | null;
  onSpot: (spot: Spot | null) => void;
}

/** The canvas, what is pointed at, and the keys that walk through it. */
function Picture({ grid, metric, unit, spot, onSpot, isolated, onIsolate }: PictureProps) {
  const tokens = useTokens();
  const host = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(host);
  const row = rowHeight(grid);
  const left = width < NARROW ? 0 : NAMES;
  const place = { left: 0, top: 0, width: Math.max(1, width - left), height: row * grid.nodes.length };
  const look = useMemo(() => ({ ramp: ramp(tokens.heat), bad: tokens.bad, ink: tokens.surface, font: tokens.font }), [tokens]);
  useLayoutEffect(() => {
    if (canvas.current === null || width === 0) return;
    performance.clearMeasures("heat map");
    const start = performance.now();
    drawHeat(canvas.current, grid, look, place);
    performance.measure("heat map", { start });
    // The place follows from the width and the grid.
    // eslint-disable-next-line
  }, [grid, look, width]);

  const columns = grid.rounds.length;
  const at = (event: PointerEvent): Spot => {
    const box = event.currentTarget.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const line = Math.floor((event.clientY - box.top) / row);
    return { row: clamp(line, grid.nodes.length), column: clamp(column, columns) };
  };
  const walk = (event: KeyboardEvent) => {
    const now = spot ?? { row: 0, column: columns - 1 };
    if (event.key === "Enter" || event.key === " ") choose(now.row);
    else if (event.key === "Escape") onIsolate("");
    else {
      const next = moved(now, event.key, grid);
      if (next === null) return;
      onSpot(spot === null ? now : next);
    }
    event.preventDefault();
  };
  const choose = (line: number) => {
    const node = grid.nodes[line] ?? "";
    onIsolate(node === isolated ? "" : node);
  };
  const here = spot !== null && spot.row < grid.nodes.length && spot.column < columns ? spot : null;
  return (
    <div className="heat" ref={host} style={{ gridTemplateColumns: left === 0 ? "1fr" : `${NAMES}px 1fr` }}>
      {left > 0 && <Names grid={grid} row={row} isolated={isolated} />}
      <div
        className="heat-cells"
        tabIndex={0}
        role="application"
        aria-roledescription="heat map"
        aria-label={`${titleOf(metric)} by client and ${unit}: arrow keys walk, Enter shows one client alone`}
        aria-describedby="heat-here"
        data-testid="heat-cells"
        style={{ height: place.height }}
        onKeyDown={walk}
        onPointerMove={(event) => onSpot(at(event))}
        onPointerLeave={() => onSpot(null)}
        onClick={() => spot && choose(spot.row)}
      >
        <canvas ref={canvas} aria-hidden="true" style={{ width: place.width, height: place.height }} />
        {here && (
          <i
            className="heat-cursor"
            style={{
              left: `${(100 * here.column) / columns}%`,
              top: here.row * row,
              width: `max(3px, ${100 / columns}%)`,
              height: row,
            }}
          />
        )}
      </div>
      <p className="heat-here" id="heat-here" aria-live="polite" data-testid="heat-here">
        {here === null ? (
          <span className="faint">Point at a cell, or walk with the arrow keys. Enter or a click shows one client alone.</span>
        ) : (
          <Here grid={grid} spot={here} metric={metric} unit={unit} />
        )}
      </p>
    </div>
  );
}

const clamp = (value: number, size: number): number => Math.max(0, Math.min(size - 1, value));

/** Where a key leads; null for a key that leads nowhere. */
export function moved(spot: Spot, key: string, grid: Pick<Grid, "nodes" | "rounds">): Spot | null {
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
  const by = steps[key];
  if (by === undefined) return null;
  return { row: clamp(spot.row + by[0], grid.nodes.length), column: clamp(spot.column + by[1], grid.rounds.length) };
}

function Here({ grid, spot, metric, unit }: { grid: Grid; spot: Spot; metric: string; unit: Unit }) {
  const value = cellOf(grid, spot.row, spot.column);
  const from = grid.rounds[spot.column] ?? 0;
  const rounds = grid.step === 1 ? count(from) : `${count(from)}–${count(from + grid.step - 1)}`;
  return (
    <>
      <bdi>{visible(grid.nodes[spot.row] ?? "")}</bdi> · {unit} {rounds} ·{" "}
      <b className={value !== null && !Number.isFinite(value) ? "bad" : ""}>
        {value === null ? "nothing reported" : write(metric, value)}
      </b>
    </>
  );
}

/** The names of those rows that have room for one. */
function Names({ grid, row, isolated }: { grid: Grid; row: number; isolated: string }) {
  const every = Math.ceil(NAME_ROW / row);
  return (
    <ul className="heat-names" aria-hidden="true">
      {grid.nodes.map(
        (node, index) =>
          (index % every === 0 || node === isolated) && (
            <li key={node} style={{ top: index * row, height: row * every }} className={node === isolated ? "own" : ""}>
              <bdi>{visible(node)}</bdi>
            </li>
          ),
      )}
    </ul>
  );
}

function SummaryTable({ grid, metric }: { grid: Grid; metric: string }) {
  return (
    <table className="data-table">
      <thead>
        <tr>
          <th scope="col">Client</th>
          {["Newest", "Mean", "Least", "Most", capital(DIVERGED)].map((name) => (
            <th key={name} scope="col" className="num">
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {summaries(grid).map(({ node, newest, mean, low, high, diverged }) => (
          <tr key={node}>
            <th scope="row">
              <bdi>{visible(node)}</bdi>
            </th>
            {[newest, mean, low, high].map((value, index) => (
              <td key={index} className="num">
                {write(metric, value)}
              </td>
            ))}
            <td className={diverged > 0 ? "num bad" : "num"}>{count(diverged)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
