import { useCallback, useMemo, useRef, useState } from "react";
import type uPlot from "uplot";
import { axisLabel, shortFigure, shortPercent } from "../charts/axis";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { divergedMarks } from "../charts/diverged";
import { SYNC } from "../charts/lineOptions";
import type { Look } from "../charts/look";
import { logValues, pointer, xAxis, xScale, yAxis, zoomHooks } from "../charts/options";
import { Plot } from "../charts/Plot";
import { accuracyRange, logRange, lossRange } from "../charts/series";
import { smooth, SMOOTHING } from "../charts/smooth";
import { useTokens } from "../charts/tokens";
import type { KeptZoom } from "../charts/zoom";
import { wordsFor, type What } from "../format/metric";
import { bytes, count, figure, percent } from "../format/number";
import { duration } from "../format/time";
import { capital, type Unit } from "../format/unit";
import { overlay } from "./overlay";
import type { Run } from "./runs";

interface Props {
  what: What;
  /** That all runs have; undefined: none. */
  common: string | undefined;
  runs: Run[];
  /** The name of the run that stands out; empty: all do. */
  alone: string;
  look: Look;
  unit: Unit;
  zoom: Pick<KeptZoom, "zoom" | "keep">;
}

const HEIGHT = 260;
const TITLE: Record<What, string> = { accuracy: "Accuracy", loss: "Loss" };
const WRITE = { accuracy: (value: number | undefined) => percent(value), loss: figure };

/** Four colours, and dashes where they begin anew. */
export const COLOURS = 4;
export const isDashed = (run: number): boolean => Math.floor(run / COLOURS) % 2 === 1;

/** Beyond so many, runs have no points of their own, and words are for the first ones. */
const MANY = 8;

/** One metric of several runs along one axis. */
export function RunsChart({ what, common, runs, alone, look, unit, zoom: { zoom, keep } }: Props) {
  const { axis, logX, logY } = look;
  const tokens = useTokens();
  const [pointed, setPointed] = useState<number | null>(null);
  const metric = common ?? "";
  const lines = useMemo(
    () =>
      overlay(
        runs.map((run) => run.versions),
        metric,
        axis,
      ),
    [runs, metric, axis],
  );
  const weight = SMOOTHING[look.smoothing];
  const data = useMemo(() => {
    const y = weight > 0 ? lines.y.map((line) => smooth(line, weight)) : lines.y;
    return [lines.x, ...y] as uPlot.AlignedData;
  }, [lines, weight]);
  const current = useRef(lines);
  // Before any effect of this redraw: the plot asks for the marks of the data that it is about to get.
  current.current = lines;
  const number = runs.length;
  const lit = runs.findIndex(({ job }) => job.name === alone);
  const make = useCallback(
    (width: number, height: number): uPlot.Options => {
      const { cursor, plugin } = pointer(tokens, SYNC, setPointed);
      const strokes = Array.from({ length: number }, (_, run) =>
        lit === -1 || lit === run ? (tokens.series[run % COLOURS] ?? tokens.ink2) : tokens.line,
      );
      const marks = divergedMarks(() => current.current, strokes, tokens, what === "loss" ? "top" : "bottom");
      const range = (_: uPlot, low: number | null, high: number | null): uPlot.Range.MinMax => {
        const marked = current.current.diverged.length > 0;
        if (logY) return logRange(low, high, marked && what === "loss");
        return what === "accuracy" ? accuracyRange(low, high) : lossRange(low, high, marked);
      };
      const write = what === "accuracy" ? shortPercent : shortFigure;
      const y = yAxis(tokens, write);
      return {
        width,
        height,
        cursor: number > MANY ? { ...cursor, points: { show: false } } : cursor,
        plugins: [plugin, zoomHooks(zoom, SYNC, keep), marks],
        legend: { show: false },
        padding: [10, 18, 0, 0],
        scales: {
          x: xScale(zoom, 0, logX ? "log" : "linear"),
          y: { range, ...(logY ? { distr: 3, log: 10 } : {}) },
        },
        axes: [xAxis(axis, tokens, logX), logY ? { ...y, values: logValues(write) } : y],
        series: [
          {},
          ...strokes.map((stroke, run) => ({
            stroke,
            width: lit === run ? 3 : number > MANY ? 1.25 : 2,
            dash: isDashed(run) ? [6, 4] : undefined,
            points: number > MANY ? { show: false } : { size: 5, fill: tokens.surface },
          })),
        ],
      };
    },
    [tokens, axis, logX, logY, what, number, lit, zoom, keep],
  );
  const last = lines.x.length - 1;
  const versions = lines.at.map((reached) => reached[pointed ?? last]);
  const told = runs.map((run, index): [Run, number] => [run, index]).filter(([, index]) => lit === -1 || index === lit);
  return (
    <ChartFrame
      title={metric === "" ? TITLE[what] : `${TITLE[what]}, ${wordsFor(metric)}`}
      testId={`compare-${what}`}
      label={`${TITLE[what]} by ${axisLabel(axis, unit).toLowerCase()} of ${names(runs)}`}
      height={HEIGHT}
      empty={metric === "" ? `The runs have no ${what} in common yet.` : null}
      readout={
        <>
          {told.slice(0, MANY).map(([run, index]) => (
            <span key={run.job.name} className="readout-item">
              <Swatch run={index} />
              {run.job.name} <b>{WRITE[what](versions[index]?.metrics[metric])}</b>
            </span>
          ))}
          {told.length > MANY && <span className="faint">and {count(told.length - MANY)} more in the table</span>}
        </>
      }
      plot={<Plot make={make} data={data} height={HEIGHT} />}
      table={() => <Values runs={runs} metric={metric} unit={unit} write={WRITE[what]} />}
      csv={() =>
        toCsv(
          ["run", unit, "elapsed_s", "total_bytes", metric],
          runs.flatMap(({ job, versions: all }) =>
            all.map((one) => [job.name, one.number, one.elapsed_s, one.total_bytes, one.metrics[metric]]),
          ),
        )
      }
    />
  );
}

const names = (runs: Run[]): string =>
  runs.length <= MANY ? runs.map((run) => run.job.name).join(", ") : `${count(runs.length)} runs`;

export function Swatch({ run }: { run: number }) {
  return <i className={`swatch series-${(run % COLOURS) + 1}${isDashed(run) ? " dashed" : ""}`} />;
}

interface ValuesProps {
  runs: Run[];
  metric: string;
  unit: Unit;
  write: (value: number | undefined) => string;
}

function Values({ runs, metric, unit, write }: ValuesProps) {
  return (
    <table className="data-table">
      <thead>
        <tr>
          <th scope="col">Run</th>
          {[capital(unit), "Time", "Bytes", "Value"].map((name) => (
            <th key={name} scope="col" className="num">
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {runs.flatMap(({ job, versions }) =>
          versions.map((version) => (
            <tr key={`${job.name} ${version.number}`}>
              <th scope="row">{job.name}</th>
              <td className="num">{count(version.number)}</td>
              <td className="num">{duration(version.elapsed_s)}</td>
              <td className="num">{bytes(version.total_bytes)}</td>
              <td className="num">{write(version.metrics[metric])}</td>
            </tr>
          )),
        )}
      </tbody>
    </table>
  );
}
