import { useMemo, useState, type PointerEvent } from "react";
import type { Peer } from "../api/types";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { count, percent, UNKNOWN } from "../format/number";
import { visible } from "../format/text";
import { coverage, paths, share, type Coverage } from "./coverage";

const HEIGHT = 168;
const CELL = 10;
const GAP = 1;

interface Cell {
  row: number;
  column: number;
}

/** Whose rounds each model holds: a row for each model, a column for each node whose rounds they are. */
export function CoverageMatrix({ peers }: { peers: Peer[] }) {
  const found = useMemo(() => coverage(peers), [peers]);
  const drawn = useMemo(() => paths(found, CELL, GAP), [found]);
  const [cell, setCell] = useState<Cell | null>(null);
  const side = found.names.length * CELL;
  const worked = found.rounds.some((rounds) => rounds > 0);
  const point = (event: PointerEvent<SVGSVGElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    const place = (at: number) => Math.min(found.names.length - 1, Math.max(0, Math.floor(at * found.names.length)));
    setCell({ row: place((event.clientY - box.top) / box.height), column: place((event.clientX - box.left) / box.width) });
  };
  return (
    <ChartFrame
      title="Whose rounds each model holds"
      testId="coverage"
      label={describe(found)}
      height={HEIGHT}
      empty={worked ? null : "No node has trained away from the server yet."}
      readout={cell !== null && cell.row < found.names.length ? words(found, cell) : <Scale />}
      plot={
        <div className="coverage-place">
          <span className="coverage-axis">rounds of →</span>
          <span className="coverage-axis down">model of →</span>
          <svg
            className="coverage"
            viewBox={`0 0 ${side} ${side}`}
            aria-hidden="true"
            onPointerMove={point}
            onPointerLeave={() => setCell(null)}
          >
            <rect width={side} height={side} className="coverage-none" />
            {drawn.map((path, level) => (
              <path key={level} d={path} className={`coverage-${level}`} />
            ))}
          </svg>
        </div>
      }
      table={() => <CoverageTable coverage={found} />}
      csv={() =>
        toCsv(
          ["model of", ...found.names],
          found.names.map((name, row) => [name, ...found.names.map((_, column) => share(found, row, column))]),
        )
      }
    />
  );
}

function Scale() {
  return (
    <>
      {["under ¼", "¼", "½", "¾", "all"].map((word, level) => (
        <span key={word} className="readout-item">
          <i className={`swatch block coverage-${level}`} />
          {word}
        </span>
      ))}
    </>
  );
}

function words({ names, rounds, held }: Coverage, { row, column }: Cell): string {
  const [whose, of] = [visible(names[row] ?? ""), visible(names[column] ?? "")];
  return `${whose} holds ${count(held[row]?.[column] ?? 0)} of ${count(rounds[column] ?? 0)} rounds of ${of}`;
}

function describe(found: Coverage): string {
  const means = found.names.map((name, row): [string, number] => {
    const parts = found.names.map((_, column) => share(found, row, column)).filter((part) => part !== null);
    return [name, parts.reduce((sum, part) => sum + part, 0) / Math.max(1, parts.length)];
  });
  const [least, mean] = means.sort(([, a], [, b]) => a - b)[0] ?? ["", 1];
  return `Whose rounds each of ${found.names.length} models holds; ${visible(least)} holds the least, ${percent(mean, 0)}`;
}

function CoverageTable({ coverage }: { coverage: Coverage }) {
  const { names } = coverage;
  return (
    <table className="data-table">
      <thead>
        <tr>
          <th scope="col">Model of</th>
          {names.map((name) => (
            <th key={name} scope="col" className="num">
              {visible(name)}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {names.map((name, row) => (
          <tr key={name}>
            <th scope="row">{visible(name)}</th>
            {names.map((other, column) => {
              const part = share(coverage, row, column);
              return (
                <td key={other} className="num">
                  {part === null ? UNKNOWN : percent(part, 0)}
                </td>
              );
            })}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
