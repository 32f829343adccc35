import { useMemo } from "react";
import type uPlot from "uplot";
import type { SplitVersion } from "../api/types";
import { shortFigure } from "../charts/axis";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { divergedPlugin } from "../charts/divergedPlugin";
import { xAxis, xScale, yAxis } from "../charts/plotOptions";
import { lossRange, toPoint, type Lines } from "../charts/series";
import { useChart, useLatest } from "../charts/useChart";
import { useZoom } from "../charts/useZoom";
import { formatCount, formatNumber } from "../format/number";
import { Table, type Column } from "../ui/Table";

const HEIGHT = 232;
const SYNC = "split";
const LOSS = "train/loss";
const COLOR = 2;
const TITLE = "Loss in training by round";

const COLUMNS: Column<SplitVersion>[] = [
  { title: "Round", numeric: true, cell: ({ number }) => formatCount(number) },
  { title: "Loss", numeric: true, cell: ({ metrics }) => formatNumber(metrics[LOSS]) },
  { title: "Examples", numeric: true, cell: ({ examples }) => formatCount(examples) },
  { title: "Steps", numeric: true, cell: ({ batches }) => formatCount(batches) },
];

/** Chart of the mean loss of each round. */
export function LossChart({ versions }: { versions: SplitVersion[] }) {
  const zoom = useZoom("zoom", SYNC);
  const lines = useMemo((): Lines => {
    const y = versions.map(({ metrics }) => toPoint(metrics[LOSS]));
    const diverged = y.map((_, index) => index).filter((index) => y[index] === null);
    return { x: versions.map(({ number }) => number), y: [y], diverged };
  }, [versions]);
  const data = useMemo(() => [lines.x, ...lines.y] as uPlot.AlignedData, [lines]);
  const latest = useLatest(lines);
  const { plot, pointed } = useChart(
    {
      data,
      height: HEIGHT,
      sync: SYNC,
      zoom,
      options: (tokens) => ({
        plugins: [divergedPlugin(() => latest.current, [tokens.series[COLOR] ?? tokens.ink2], tokens, "top")],
        scales: {
          x: xScale(zoom.zoom),
          y: { range: (_, low, high) => lossRange(low, high, latest.current.diverged.length > 0) },
        },
        axes: [xAxis("round", "round", tokens), yAxis("loss", tokens, shortFigure)],
        series: [
          {},
          {
            label: "loss",
            stroke: tokens.series[COLOR],
            width: 2,
            points: { show: (chart) => chart.data[0].length <= 2, size: 6 },
          },
        ],
      }),
    },
    [],
  );
  const at = versions[pointed ?? versions.length - 1] ?? versions.at(-1);
  return (
    <ChartFrame
      title={TITLE}
      testId="chart-split-loss"
      label={`${TITLE}: ${formatNumber(at?.metrics[LOSS])} in round ${formatCount(at?.number ?? 0)}`}
      height={HEIGHT}
      zoom={zoom}
      empty={versions.length === 0 ? "No round has closed yet." : null}
      legend={
        at && (
          <>
            <span className="readout-item">
              <i className={`swatch series-${COLOR + 1}`} />
              training <b>{formatNumber(at.metrics[LOSS])}</b>
            </span>
            <span className="readout-place">round {formatCount(at.number)}</span>
          </>
        )
      }
      plot={plot}
      table={() => <Table columns={COLUMNS} rows={versions.toReversed()} rowKey={({ number }) => number} />}
      csv={() =>
        toCsv(
          ["round", "examples", "steps", LOSS],
          versions.map(({ number, examples, batches, metrics }) => [number, examples, batches, metrics[LOSS]]),
        )
      }
    />
  );
}
