import { useMemo } from "react";
import type uPlot from "uplot";
import type { Version } from "../api/types";
import { clientMetric, metricTitle, latestComparableVersion, metricLabel, metricNamesIn, seriesIndex } from "../domain/metrics";
import type { Unit } from "../domain/unit";
import { formatCount, formatNumber, formatPercent, plural } from "../format/number";
import { axisTitle, describePoint, type Axis } from "./axis";
import { ChartFrame } from "./ChartFrame";
import type { OnPointClick } from "./clickPlugin";
import type { ClientSpread } from "./clientSpread";
import { latestWith, LineLegend, SpreadLegend } from "./LineLegend";
import { lineOptions, METRICS_SYNC } from "./lineOptions";
import { addLine, buildLines, emptyLine, stageStarts } from "./series";
import { seriesCsv, SeriesTable } from "./SeriesTable";
import { smooth, SMOOTHING_WEIGHTS } from "./smoothing";
import { useChart, useLatest } from "./useChart";
import type { ChartSettings } from "./useChartSettings";
import type { ChartZoom } from "./useZoom";

interface Props {
  /** The kind of metric, such as "accuracy". */
  kind: string;
  /** The versions that are drawn. */
  versions: Version[];
  /** Return all known versions, for the table and the file. */
  allData: () => { versions: Version[]; spread: ClientSpread | undefined };
  settings: ChartSettings;
  unit: Unit;
  zoom: ChartZoom;
  /** The clients' values of the first metric that nodes report. */
  spread: ClientSpread | undefined;
  onPointClick: OnPointClick;
}

const HEIGHT = 232;
const formatOf = (kind: string) => (kind === "accuracy" ? (value: number | undefined) => formatPercent(value) : formatNumber);

/** Chart of all metrics of one kind over a run. */
export function LineChart({ kind, versions, allData, settings, unit, zoom, spread, onPointClick }: Props) {
  const { axis, smoothing } = settings;
  const joined = metricNamesIn(kind, versions).join("\n");
  const names = useMemo(() => (joined === "" ? [] : joined.split("\n")), [joined]);
  const lines = useMemo(() => ({ ...buildLines(versions, names, axis), stages: stageStarts(versions) }), [versions, names, axis]);
  const weight = SMOOTHING_WEIGHTS[smoothing];
  const data = useMemo(() => {
    const smoothed = weight > 0 ? lines.y.map((line) => smooth(line, weight)) : [];
    const spreadLines = [spread?.high, spread?.low, spread?.highlighted].map((line) => line ?? emptyLine(lines));
    return [lines.x, ...lines.y, ...smoothed, ...spreadLines] as uPlot.AlignedData;
  }, [lines, weight, spread]);
  const latest = useLatest({ lines: addLine(lines, spread?.highlighted), onPointClick });
  const { plot, pointed } = useChart(
    {
      data,
      height: HEIGHT,
      sync: METRICS_SYNC,
      zoom,
      options: (tokens) =>
        lineOptions(
          {
            kind,
            names,
            unit,
            settings,
            zoom: zoom.zoom,
            lines: () => latest.current.lines,
            onPointClick: (...point) => latest.current.onPointClick(...point),
          },
          tokens,
        ),
    },
    [kind, names, unit, settings],
  );
  const at = pointed === null ? latestComparableVersion(names, versions) : versions[pointed];
  const format = formatOf(kind);
  return (
    <ChartFrame
      title={`${metricTitle(kind, names)} by ${axisTitle(axis, unit)}`}
      testId={`chart-${kind}`}
      label={describe(kind, versions, names, axis, unit)}
      height={HEIGHT}
      empty={names.length === 0 ? `No ${kind} has been reported yet.` : null}
      legend={
        <>
          <LineLegend names={names} at={at} format={format} />
          {spread && (
            <SpreadLegend
              spread={spread}
              at={at === undefined ? null : versions.indexOf(at)}
              color={seriesIndex(clientMetric(names) ?? "")}
              format={format}
            />
          )}
          <span className="readout-place">
            {at && describePoint(at, axis, unit)}
            {at?.provisional && ` · ${formatCount(at.provisional.reported)} of ${plural(at.provisional.asked, "node")}`}
          </span>
        </>
      }
      plot={plot}
      table={() => <SeriesTable {...allData()} names={names} unit={unit} format={format} />}
      csv={() => seriesCsv(allData().versions, names, unit, allData().spread)}
    />
  );
}

function describe(kind: string, versions: Version[], names: string[], axis: Axis, unit: Unit): string {
  const parts = names.map((name) => {
    const version = latestWith(versions, name);
    return `${metricLabel(name)} ${formatOf(kind)(version?.metrics[name])} at ${unit} ${formatCount(version?.number ?? 0)}`;
  });
  return `${metricTitle(kind, names)} by ${axisTitle(axis, unit)}: ${parts.join("; ")}`;
}
