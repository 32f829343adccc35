import { useMemo } from "react";
import type uPlot from "uplot";
import type { SplitJobDetail } from "../api/types";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { bytesOptions } from "../charts/TrafficChart";
import type { Tokens } from "../charts/tokens";
import { useChart, type PlotOptions } from "../charts/useChart";
import { useZoom } from "../charts/useZoom";
import { formatBytes, formatCount } from "../format/number";
import { Table, type Column } from "../ui/Table";
import { stepBytes, upAndDown, type StepBytes } from "./stepBytes";

const HEIGHT = 232;
const SYNC = "split bytes";
const TITLE = "Bytes of a step by round (up and down)";

const COLUMNS: Column<StepBytes>[] = [
  { title: "Round", numeric: true, cell: ({ round }) => formatCount(round) },
  { title: "Up", numeric: true, cell: ({ up }) => formatBytes(up) },
  { title: "Down", numeric: true, cell: ({ down }) => formatBytes(down) },
];

/** Chart of the bytes of a step: bars of the bytes that were sent, lines of those by formula. */
export function StepBytesChart({ job }: { job: SplitJobDetail }) {
  const { step_up_bytes: up, step_down_bytes: down } = job;
  const zoom = useZoom("zoom.bytes", SYNC);
  const rounds = useMemo(() => stepBytes(job), [job]);
  const data = useMemo(() => {
    const lines = [rounds.map((one) => one.up), rounds.map((one) => -one.down), rounds.map(() => up), rounds.map(() => -down)];
    return [rounds.map(({ round }) => round), ...lines] as uPlot.AlignedData;
  }, [rounds, up, down]);
  const { plot, pointed } = useChart({ data, height: HEIGHT, sync: SYNC, zoom, options: (tokens) => options(tokens, zoom) }, []);
  const at = rounds[pointed ?? rounds.length - 1] ?? rounds.at(-1);
  return (
    <ChartFrame
      title={TITLE}
      testId="chart-split-bytes"
      label={`${TITLE}: by formula ${upAndDown(up, down)}${at === undefined ? "" : `; sent in round ${formatCount(at.round)} ${upAndDown(at.up, at.down)}`}`}
      height={HEIGHT}
      zoom={zoom}
      empty={rounds.length === 0 ? "No round has closed yet." : null}
      legend={
        at && (
          <>
            <Sent way="up" sent={at.up} formula={up} />
            <Sent way="down" sent={at.down} formula={down} />
            <span className="readout-place">round {formatCount(at.round)}</span>
          </>
        )
      }
      plot={plot}
      table={() => (
        <Table
          columns={COLUMNS}
          rows={rounds.toReversed()}
          rowKey={({ round }) => round}
          caption={`By formula: ${upAndDown(up, down)}`}
        />
      )}
      csv={() =>
        toCsv(
          ["round", "up_bytes", "down_bytes", "formula_up_bytes", "formula_down_bytes"],
          rounds.map((one) => [one.round, one.up, one.down, up, down]),
        )
      }
    />
  );
}

function Sent({ way, sent, formula }: { way: "up" | "down"; sent: number; formula: number }) {
  return (
    <span className="readout-item">
      <i className={`swatch block ${way}`} />
      {way} <b>{formatBytes(sent)}</b> (formula {formatBytes(formula)})
    </span>
  );
}

function options(tokens: Tokens, zoom: ReturnType<typeof useZoom>): PlotOptions {
  const bars = bytesOptions(tokens, "round", zoom.zoom);
  const line = (label: string): uPlot.Series => ({
    label,
    stroke: tokens.ink,
    width: 1.5,
    dash: [4, 4],
    points: { show: (chart) => chart.data[0].length <= 2, size: 6 },
  });
  return { ...bars, series: [...bars.series, line("up by formula"), line("down by formula")] };
}
