import { useMemo } from "react";
import type uPlot from "uplot";
import type { PeersPoint } from "../api/types";
import { shortPercent } from "../charts/axis";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { xAxis, xScale, yAxis } from "../charts/plotOptions";
import { useChart, useLatest } from "../charts/useChart";
import type { ChartZoom } from "../charts/useZoom";
import { formatCount, formatNumber, formatPercent, UNKNOWN } from "../format/number";
import { formatTime } from "../format/time";
import { Table, type Column } from "../ui/Table";
import { Timestamp } from "../ui/Timestamp";
import { clampLow, decades, decadeTicks, formatPowerOfTen, isShare, toCurve, type PeerMetric } from "./peerHistory";
import type { TermName } from "../ui/terms";

const HEIGHT = 184;
export const SYNC = "peers";

interface MetricStyle {
  title: string;
  /** The unit; empty: none. */
  unit: "%" | "";
  term?: TermName;
  /** Shown beside the value. */
  meaning: string;
  /** Index into the theme's series colors. */
  color: number;
  format: (value: number | null | undefined) => string;
}

export const PEER_METRICS: Record<PeerMetric, MetricStyle> = {
  accuracy: { title: "Peer accuracy", unit: "%", meaning: "mean over the peers' models", color: 0, format: (value) => formatPercent(value) },
  loss: { title: "Peer loss", unit: "", meaning: "mean over the peers' models", color: 1, format: formatNumber },
  consensus: {
    title: "Consensus distance",
    unit: "%",
    term: "consensus distance",
    meaning: "of the models from their mean",
    color: 0,
    format: (value) => formatPercent(value, 2),
  },
  residual: {
    title: "Conservation residual",
    unit: "",
    term: "conservation residual",
    meaning: "of all that was learned is missing",
    color: 1,
    format: formatNumber,
  },
  coverage: {
    title: "Update coverage",
    unit: "%",
    term: "coverage",
    meaning: "of all rounds are in the models",
    color: 3,
    format: (value) => formatPercent(value),
  },
};

interface Props {
  metric: PeerMetric;
  history: PeersPoint[];
  /** Shared by all peer metrics. */
  zoom: ChartZoom;
}

/** Chart of one of the peers' metrics over time; shares on a linear axis, other metrics on a logarithmic one. */
export function PeerMetricChart({ metric, history, zoom }: Props) {
  const { title, unit, meaning, color, format } = PEER_METRICS[metric];
  const name = unit === "" ? title : `${title} (${unit})`;
  const hasShares = isShare(metric);
  const curve = useMemo(() => toCurve(history, metric), [history, metric]);
  const range = useMemo((): [number, number] => (hasShares ? [0, 1] : decades(curve.y)), [hasShares, curve]);
  const data = useMemo(
    () => [curve.x, hasShares ? curve.y : clampLow(curve.y, range[0])] as uPlot.AlignedData,
    [curve, hasShares, range],
  );
  const latest = useLatest(range);
  const { plot, pointed } = useChart(
    {
      data,
      height: HEIGHT,
      sync: SYNC,
      zoom,
      options: (tokens) => {
        const logAxis: uPlot.Axis = {
          ...yAxis(name, tokens, unit === "%" ? (value) => formatPowerOfTen(100 * value) : formatPowerOfTen),
          splits: () => decadeTicks(...latest.current),
          filter: (_, splits) => splits,
        };
        const now = Date.now();
        return {
          scales: { x: xScale(zoom.zoom), y: { range: () => latest.current, ...(hasShares ? {} : { distr: 3, log: 10 }) } },
          axes: [
            { ...xAxis("time", "time of day", tokens), values: (_, splits) => splits.map((at) => formatTime(at * 1000, now)) },
            hasShares ? yAxis(name, tokens, shortPercent) : logAxis,
          ],
          series: [
            {},
            {
              label: title,
              stroke: tokens.series[color],
              width: 2,
              points: { show: (chart) => chart.data[0].length <= 2, size: 5 },
            },
          ],
        };
      },
    },
    [metric],
  );
  const at = (pointed === null ? undefined : curve.points[pointed]) ?? history.at(-1);
  const columns: Column<PeersPoint>[] = [
    { title: "Time", cell: (point) => <Timestamp at={point.at} /> },
    { title: "Peers", numeric: true, cell: ({ peers }) => formatCount(peers) },
    { title, numeric: true, cell: (point) => ((point[metric] ?? null) === null ? UNKNOWN : format(point[metric])) },
  ];
  return (
    <ChartFrame
      title={`${name} by time of day`}
      testId={`chart-${metric}`}
      label={`${title} over time: ${format(at?.[metric])} ${meaning}`}
      height={HEIGHT}
      zoom={zoom}
      empty={curve.y.some((value) => value !== null) ? null : "No data yet: it is measured while the job is in gossip mode."}
      legend={
        <>
          <span className="readout-item">
            <i className={`swatch series-${color + 1}`} />
            <b>{format(at?.[metric])}</b> {meaning}
          </span>
          {at && <span className="readout-place">{formatTime(Date.parse(at.at), Date.now())}</span>}
        </>
      }
      plot={plot}
      table={() => <Table columns={columns} rows={history.toReversed()} rowKey={(point) => point.at} />}
      csv={() => toCsv(["at", "peers", metric], history.map((one) => [one.at, one.peers, one[metric]]))}
    />
  );
}
