import { useCallback, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import type { PeersPoint } from "../api/types";
import { shortPercent } from "../charts/axis";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { pointer, xAxis, xScale, yAxis, zoomHooks } from "../charts/options";
import { Plot } from "../charts/Plot";
import { useTokens, type Tokens } from "../charts/tokens";
import type { KeptZoom } from "../charts/zoom";
import { count, figure, percent, UNKNOWN } from "../format/number";
import { clock } from "../format/time";
import { curve, decades, floored, isShare, power, tens, type Curve, type Measure } from "./history";
import { Moment } from "../ui/Moment";

const HEIGHT = 168;
export const SYNC = "peers";

interface Words {
  title: string;
  /** What the figure is, beside it. */
  means: string;
  series: number;
  write: (value: number | null | undefined) => string;
}

export const MEASURES: Record<Measure, Words> = {
  accuracy: { title: "Accuracy of peers", means: "mean over their models", series: 0, write: (value) => percent(value) },
  loss: { title: "Loss of peers", means: "mean over their models", series: 1, write: figure },
  consensus: { title: "Consensus distance", means: "models from their mean", series: 0, write: (value) => percent(value, 2) },
  residual: { title: "Conservation residual", means: "unaccounted for", series: 1, write: figure },
  coverage: { title: "Coverage", means: "of all rounds held", series: 3, write: (value) => percent(value) },
};

interface Props {
  what: Measure;
  history: PeersPoint[];
  /** Of all measures. */
  zoom: KeptZoom;
}

/** One of the peers' measures over time; what is known only now and then is drawn on an axis of powers of ten. */
export function HistoryChart({ what, history, zoom: kept }: Props) {
  const tokens = useTokens();
  const [pointed, setPointed] = useState<number | null>(null);
  const { zoom, keep } = kept;
  const { title, means, series, write } = MEASURES[what];
  const line = useMemo(() => curve(history, what), [history, what]);
  const range = useMemo(() => rangeOf(what, line), [what, line]);
  const data = useMemo(() => [line.x, isShare(what) ? line.y : floored(line.y, range[0])] as uPlot.AlignedData, [
    line,
    what,
    range,
  ]);
  const current = useRef(range);
  // Before any effect of this redraw: the plot asks for the range of the data that it is about to get.
  current.current = range;
  const make = useCallback(
    (width: number, height: number) => {
      const settings = { what, title, series, tokens, zoom: { zoom, keep }, range: () => current.current, onPoint: setPointed };
      return options(settings, width, height);
    },
    [what, title, series, tokens, zoom, keep],
  );
  const at = (pointed === null ? undefined : line.points[pointed]) ?? history.at(-1);
  const known = line.y.some((value) => value !== null);
  return (
    <ChartFrame
      title={title}
      testId={`chart-${what}`}
      label={`${title} over time: ${write(at?.[what])} ${means}`}
      height={HEIGHT}
      zoom={kept}
      empty={known ? null : "Not known yet: it is measured while nodes carry on among themselves."}
      readout={
        <>
          <span className="readout-item">
            <i className={`swatch series-${series + 1}`} />
            <b>{write(at?.[what])}</b> {means}
          </span>
          {at && <span className="readout-place">{clock(Date.parse(at.at), Date.now())}</span>}
        </>
      }
      plot={<Plot make={make} data={data} height={HEIGHT} />}
      table={() => <HistoryTable history={history} what={what} />}
      csv={() => toCsv(["at", "peers", what], history.map((one) => [one.at, one.peers, one[what]]))}
    />
  );
}

const rangeOf = (what: Measure, { y }: Curve): [number, number] => (isShare(what) ? [0, 1] : decades(y));

interface Settings {
  what: Measure;
  title: string;
  series: number;
  tokens: Tokens;
  zoom: Pick<KeptZoom, "zoom" | "keep">;
  range: () => [number, number];
  onPoint: (index: number | null) => void;
}

function options(settings: Settings, width: number, height: number): uPlot.Options {
  const { what, title, series, tokens, zoom, range, onPoint } = settings;
  const { cursor, plugin } = pointer(tokens, SYNC, onPoint);
  const shares = isShare(what);
  const y: uPlot.Axis = shares
    ? yAxis(tokens, shortPercent)
    : { ...yAxis(tokens, power), splits: () => tens(...range()), filter: (_, splits) => splits };
  const now = Date.now();
  return {
    width,
    height,
    cursor,
    plugins: [plugin, zoomHooks(zoom.zoom, SYNC, zoom.keep)],
    legend: { show: false },
    padding: [10, 18, 0, 0],
    scales: { x: xScale(zoom.zoom), y: { range, ...(shares ? {} : { distr: 3, log: 10 }) } },
    axes: [{ ...xAxis("time", tokens), values: (_, splits) => splits.map((at) => clock(at * 1000, now)) }, y],
    series: [
      {},
      {
        label: title,
        stroke: tokens.series[series],
        width: 2,
        points: { show: (plot) => plot.data[0].length <= 2, size: 5 },
      },
    ],
  };
}

function HistoryTable({ history, what }: { history: PeersPoint[]; what: Measure }) {
  const { title, write } = MEASURES[what];
  return (
    <table className="data-table">
      <thead>
        <tr>
          <th scope="col">Time</th>
          <th scope="col" className="num">
            Nodes that carried on
          </th>
          <th scope="col" className="num">
            {title}
          </th>
        </tr>
      </thead>
      <tbody>
        {history.toReversed().map((point) => (
          <tr key={point.at}>
            <th scope="row"><Moment at={point.at} /></th>
            <td className="num">{count(point.peers)}</td>
            <td className="num">{(point[what] ?? null) === null ? UNKNOWN : write(point[what])}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
