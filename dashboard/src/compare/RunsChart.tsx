import { useMemo } from "react";
import type uPlot from "uplot";
import { axisTitle } from "../charts/axis";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { divergedPlugin } from "../charts/divergedPlugin";
import { metricAxis, metricScale, METRICS_SYNC } from "../charts/lineOptions";
import { xAxis, xScale } from "../charts/plotOptions";
import { smooth, SMOOTHING_WEIGHTS } from "../charts/smoothing";
import { useChart, useLatest } from "../charts/useChart";
import type { ChartSettings } from "../charts/useChartSettings";
import type { ChartZoom } from "../charts/useZoom";
import { metricTitle, type MetricKind } from "../domain/metrics";
import type { Unit } from "../domain/unit";
import { formatBytes, formatCount, formatNumber, formatPercent } from "../format/number";
import { capitalize } from "../format/text";
import { formatDuration } from "../format/time";
import { Table, type Column } from "../ui/Table";
import { alignRuns } from "./alignRuns";
import type { Run, RunPoint } from "./comparison";
import { COLORS, isDashed, Swatch } from "./Swatch";

interface Props {
  kind: MetricKind;
  /** The metric of this kind that all runs have; undefined: none. */
  metric: string | undefined;
  runs: Run[];
  /** The name of the highlighted run; empty: none. */
  highlighted: string;
  settings: ChartSettings;
  unit: Unit;
  zoom: Pick<ChartZoom, "zoom" | "setRange">;
}

const HEIGHT = 276;
const FORMATS = { accuracy: (value: number | undefined) => formatPercent(value), loss: formatNumber };

/** With more runs, points are not marked and the legend shows only the first runs. */
const MANY = 8;

/** Chart of one metric of several runs along one axis. */
export function RunsChart({ kind, metric = "", runs, highlighted, settings, unit, zoom }: Props) {
  const { axis, logX, smoothing } = settings;
  const lines = useMemo(() => alignRuns(runs.map(({ points }) => points), metric, axis), [runs, metric, axis]);
  const sources = metric === "" ? [] : [metric];
  const weight = SMOOTHING_WEIGHTS[smoothing];
  const data = useMemo(() => {
    const y = weight > 0 ? lines.y.map((line) => smooth(line, weight)) : lines.y;
    return [lines.x, ...y] as uPlot.AlignedData;
  }, [lines, weight]);
  const latest = useLatest(lines);
  const count = runs.length;
  const highlight = runs.findIndex(({ job }) => job.name === highlighted);
  const { plot, pointed } = useChart(
    {
      data,
      height: HEIGHT,
      sync: METRICS_SYNC,
      zoom,
      options: (tokens) => {
        const colorOf = (run: number) => tokens.series[run % COLORS] ?? tokens.ink2;
        const isShown = (run: number) => highlight === -1 || highlight === run;
        const strokes = Array.from({ length: count }, (_, run) => (isShown(run) ? colorOf(run) : tokens.line));
        return {
          hasCursorPoints: count <= MANY,
          plugins: [divergedPlugin(() => latest.current, strokes, tokens, kind === "loss" ? "top" : "bottom")],
          scales: {
            x: xScale(zoom.zoom, 0, logX ? "log" : "linear"),
            y: metricScale(kind, settings, () => latest.current.diverged.length > 0),
          },
          axes: [xAxis(axis, axisTitle(axis, unit), tokens, logX), metricAxis(kind, sources, settings, tokens)],
          series: [
            {},
            ...strokes.map((stroke, run) => ({
              stroke,
              width: highlight === run ? 3 : count > MANY ? 1.25 : 2,
              dash: isDashed(run) ? [6, 4] : undefined,
              points: count > MANY ? { show: false } : { size: 5, fill: tokens.surface },
            })),
          ],
        };
      },
    },
    [settings, kind, metric, unit, count, highlight],
  );
  const at = pointed ?? lines.x.length - 1;
  const listed = runs.map((run, index) => ({ run, index })).filter(({ index }) => highlight === -1 || index === highlight);
  const title = metricTitle(kind, sources);
  return (
    <ChartFrame
      title={`${title} by ${axisTitle(axis, unit)}`}
      testId={`compare-${kind}`}
      label={`${title} by ${axisTitle(axis, unit)} of ${namesOf(runs)}`}
      height={HEIGHT}
      empty={metric === "" ? `The runs have no ${kind} in common yet.` : null}
      legend={
        <>
          {listed.slice(0, MANY).map(({ run, index }) => (
            <span key={run.job.name} className="readout-item">
              <Swatch run={index} />
              {run.job.name} <b>{FORMATS[kind](lines.at[index]?.[at]?.metrics[metric])}</b>
            </span>
          ))}
          {listed.length > MANY && <span className="faint">and {formatCount(listed.length - MANY)} more in the table</span>}
        </>
      }
      plot={plot}
      table={() => <ValuesTable runs={runs} metric={metric} unit={unit} format={FORMATS[kind]} />}
      csv={() =>
        toCsv(
          ["run", unit, "elapsed_s", "total_bytes", metric],
          runs.flatMap(({ job, points }) =>
            points.map((one) => [job.name, one.number, one.elapsed_s, one.total_bytes, one.metrics[metric]]),
          ),
        )
      }
    />
  );
}

const namesOf = (runs: Run[]): string =>
  runs.length <= MANY ? runs.map((run) => run.job.name).join(", ") : `${formatCount(runs.length)} runs`;

interface ValuesTableProps {
  runs: Run[];
  metric: string;
  unit: Unit;
  format: (value: number | undefined) => string;
}

interface ValuesRow extends RunPoint {
  run: string;
}

function ValuesTable({ runs, metric, unit, format }: ValuesTableProps) {
  const rows = runs.flatMap(({ job, points }) => points.map((point): ValuesRow => ({ run: job.name, ...point })));
  const columns: Column<ValuesRow>[] = [
    { title: "Run", cell: ({ run }) => run },
    { title: capitalize(unit), numeric: true, cell: ({ number }) => formatCount(number) },
    { title: "Time", numeric: true, cell: ({ elapsed_s }) => formatDuration(elapsed_s) },
    { title: "Bytes", numeric: true, cell: ({ total_bytes }) => formatBytes(total_bytes) },
    { title: "Value", numeric: true, cell: ({ metrics }) => format(metrics[metric]) },
  ];
  return <Table columns={columns} rows={rows} rowKey={({ run, number }) => `${run} ${number}`} />;
}
