import { useMemo } from "react";
import type uPlot from "uplot";
import type { Job, Version } from "../api/types";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { shortPercent } from "../charts/axis";
import { xAxis, xScale, yAxis } from "../charts/plotOptions";
import type { Tokens } from "../charts/tokens";
import { useChart } from "../charts/useChart";
import { useZoom, type ChartZoom } from "../charts/useZoom";
import { unitOf } from "../domain/unit";
import { formatCount, formatPercent } from "../format/number";
import { Table, type Column } from "../ui/Table";
import { newestExitCurve, type ExitCurve } from "./exitCurve";

const HEIGHT = 300;
const SYNC = "exits";

interface Props {
  job: Job;
  versions: Version[];
}

/** Tab of a network with exits: the fraction that each level answers, and the accuracy, against the threshold. */
export function ExitsTab({ job, versions }: Props) {
  const curve = useMemo(() => newestExitCurve(versions), [versions]);
  if (curve === undefined) return <p className="sub">No version has a curve of its exits yet: make the learner with exit_learner(…, curve=True).</p>;
  return (
    <section className="metric-charts" aria-label="Exits">
      <div className="toolbar">
        <h2>Exits</h2>
      </div>
      <div className="panel">
        <ExitChart curve={curve} unit={unitOf(job)} />
      </div>
    </section>
  );
}

function ExitChart({ curve, unit }: { curve: ExitCurve; unit: string }) {
  const zoom = useZoom("zoom.exits", SYNC);
  const names = [...curve.levels.map(({ name }) => name), "accuracy"];
  const lines = useMemo(() => [...curve.levels.map(({ fractions }) => fractions), curve.accuracy], [curve]);
  const data = useMemo(() => [curve.thresholds, ...lines] as uPlot.AlignedData, [curve, lines]);
  const options = (tokens: Tokens) => plotOptions(names, tokens, zoom);
  const { plot, pointed } = useChart({ data, height: HEIGHT, sync: SYNC, zoom, options }, [names.join()]);
  const at = pointed ?? Math.floor(curve.thresholds.length / 2);
  return (
    <ChartFrame
      title="Answers of each level by threshold (%)"
      testId="chart-exits"
      label={`At threshold ${curve.thresholds[at]}: ${names.map((name, index) => `${name} ${formatPercent(lines[index]?.[at])}`).join(", ")}`}
      height={HEIGHT}
      zoom={zoom}
      empty={null}
      legend={
        <>
          {names.map((name, index) => (
            <span key={name} className="readout-item">
              <i className={name === "accuracy" ? "swatch alone" : `swatch series-${index + 1}`} />
              {name} <b>{formatPercent(lines[index]?.[at])}</b>
            </span>
          ))}
          <span className="readout-place">
            threshold {curve.thresholds[at]} of all exits · {unit} {formatCount(curve.version)}
          </span>
        </>
      }
      plot={plot}
      table={() => <ExitTable curve={curve} />}
      csv={() => toCsv(["threshold", ...names], curve.thresholds.map((threshold, index) => [threshold, ...lines.map((line) => line[index] ?? NaN)]))}
    />
  );
}

const thresholdTicks = (_: uPlot, splits: number[]) => splits.map((value) => value.toFixed(1));

function plotOptions(names: string[], tokens: Tokens, { zoom }: ChartZoom) {
  const line = (label: string, index: number): uPlot.Series => ({
    label,
    stroke: label === "accuracy" ? tokens.ink : tokens.series[index],
    width: 2,
    ...(label === "accuracy" ? { dash: [4, 4] } : {}),
    points: { show: false },
  });
  return {
    scales: { x: xScale(zoom), y: { range: [0, 1.02] as uPlot.Range.MinMax } },
    axes: [{ ...xAxis("bytes", "threshold of all exits", tokens), values: thresholdTicks }, yAxis("answered, accuracy (%)", tokens, shortPercent)],
    series: [{}, ...names.map(line)],
  };
}

function ExitTable({ curve }: { curve: ExitCurve }) {
  const columns: Column<number>[] = [
    { title: "Threshold", numeric: true, cell: (_, index) => curve.thresholds[index] },
    ...curve.levels.map(({ name, fractions }) => ({
      title: `Answered by ${name}`,
      numeric: true,
      cell: (_: number, index: number) => formatPercent(fractions[index]),
    })),
    { title: "Accuracy", numeric: true, cell: (_, index) => formatPercent(curve.accuracy[index]) },
  ];
  return <Table columns={columns} rows={curve.thresholds} rowKey={(threshold) => threshold} />;
}
