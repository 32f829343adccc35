import { useMemo } from "react";
import uPlot from "uplot";
import { shortFigure } from "../charts/axis";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { xAxis, xScale, yAxis } from "../charts/plotOptions";
import type { Tokens } from "../charts/tokens";
import { useChart, useLatest } from "../charts/useChart";
import type { ChartZoom } from "../charts/useZoom";
import { formatDuration } from "../format/time";
import { Table, type Column } from "../ui/Table";
import type { ConceptDrift, Rates } from "./divergence";

const HEIGHT = 184;
export const SYNC = "divergence";

type RateKind = "synchronizations" | "violations";

/** A part of a bar. */
interface Part {
  name: "full" | "partial" | "violations";
  /** Index into the theme's series colors. */
  color: number;
}

const PARTS: Record<RateKind, Part[]> = {
  synchronizations: [
    { name: "full", color: 0 },
    { name: "partial", color: 1 },
  ],
  violations: [{ name: "violations", color: 2 }],
};
const TITLES: Record<RateKind, string> = {
  synchronizations: "Synchronizations per minute",
  violations: "Violations per minute",
};

interface Props {
  kind: RateKind;
  rates: Rates;
  drifts: ConceptDrift[];
  /** Shared by all rate charts. */
  zoom: ChartZoom;
}

/** Bar chart of rates over time, with marks at detected concept drifts. */
export function RateChart({ kind, rates, drifts, zoom }: Props) {
  const parts = PARTS[kind];
  // Bars are stacked: the tallest is drawn first, and each lower one covers its foot.
  const data = useMemo(
    () => [rates.x, ...stackedHeights(parts.map(({ name }) => rates[name]))] as uPlot.AlignedData,
    [rates, parts],
  );
  const latest = useLatest({ drifts, end: rates.x.length * rates.width });
  const { plot, pointed } = useChart(
    {
      data,
      height: HEIGHT,
      sync: SYNC,
      zoom,
      options: (tokens) => {
        const paths = uPlot.paths.bars?.({ size: [0.8, 26] });
        const range = (): uPlot.Range.MinMax => {
          const { current } = zoom.zoom;
          return current ? [current.min, current.max] : [0, latest.current.end];
        };
        return {
          hasCursorPoints: false,
          plugins: [driftPlugin(() => latest.current.drifts, tokens)],
          padding: [14, 18, 0, 0],
          scales: {
            x: { ...xScale(zoom.zoom), range },
            y: { range: (_, __, high) => [0, Math.max(high ?? 0, 1) * 1.06] },
          },
          axes: [xAxis("time", "elapsed time", tokens), yAxis("per minute", tokens, shortFigure)],
          series: [
            {},
            ...parts.toReversed().map(
              ({ name, color }): uPlot.Series => ({
                label: name,
                fill: tokens.series[color],
                width: 0,
                paths,
                points: { show: false },
              }),
            ),
          ],
        };
      },
    },
    [parts],
  );
  const at = pointed !== null && pointed < rates.x.length ? pointed : rates.x.length - 1;
  const maxima = parts.map(({ name }) => `${name} at most ${shortFigure(Math.max(...rates[name]))}`).join(", ");
  const driftText = drifts.map(({ from }) => `; concept drift detected at ${formatDuration(from)}`).join("");
  return (
    <ChartFrame
      title={TITLES[kind]}
      testId={`chart-${kind}`}
      label={`${TITLES[kind]}: ${maxima}${driftText}`}
      height={HEIGHT}
      zoom={zoom}
      empty={parts.some(({ name }) => rates[name].some((value) => value > 0)) ? null : `No ${kind} yet.`}
      legend={
        <>
          {parts.map(({ name, color }) => (
            <span key={name} className="readout-item">
              <i className={`swatch block fill-${color + 1}`} />
              {name} <b>{shortFigure(rates[name][at] ?? 0)}</b>
            </span>
          ))}
          <span className="readout-place">{intervalLabel(rates, at)}</span>
        </>
      }
      plot={plot}
      table={() => <RateTable rates={rates} parts={parts} />}
      csv={() =>
        toCsv(
          ["from_s", "to_s", ...parts.map(({ name }) => `${name}_per_minute`)],
          rates.x.map((_, index) => [index * rates.width, (index + 1) * rates.width, ...parts.map(({ name }) => rates[name][index])]),
        )
      }
    />
  );
}

/** Return the heights of the bars, from the whole stack to its lowest part; null where a part is zero. */
function stackedHeights(parts: number[][]): (number | null)[][] {
  const below = new Array<number>(parts[0]?.length ?? 0).fill(0);
  const heights = parts.map((values) =>
    values.map((value, index) => {
      below[index]! += value;
      return value > 0 ? below[index]! : null;
    }),
  );
  return heights.reverse();
}

const intervalLabel = ({ width }: Rates, index: number) => `${formatDuration(index * width)} – ${formatDuration((index + 1) * width)}`;

/** Draw a dashed line at each detected concept drift. */
function driftPlugin(drifts: () => ConceptDrift[], tokens: Tokens): uPlot.Plugin {
  return {
    hooks: {
      draw: ({ ctx, bbox, valToPos }) => {
        const ratio = devicePixelRatio;
        ctx.save();
        ctx.strokeStyle = ctx.fillStyle = tokens.warn;
        ctx.lineWidth = 1.5 * ratio;
        ctx.font = tokens.font.replace("11px", `600 ${11 * ratio}px`);
        for (const { from, rise } of drifts()) {
          const x = valToPos(from, "x", true);
          if (x < bbox.left || x > bbox.left + bbox.width) continue;
          ctx.setLineDash([4 * ratio, 3 * ratio]);
          ctx.beginPath();
          ctx.moveTo(x, bbox.top - 8 * ratio);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
          const isLeft = x < bbox.left + bbox.width * 0.8;
          ctx.textAlign = isLeft ? "left" : "right";
          ctx.fillText(`drift ×${rise.toFixed(1)}`, x + (isLeft ? 5 : -5) * ratio, bbox.top);
        }
        ctx.restore();
      },
    },
  };
}

function RateTable({ rates, parts }: { rates: Rates; parts: Part[] }) {
  const columns: Column<number>[] = [
    { title: "Time", cell: (index) => intervalLabel(rates, index) },
    ...parts.map(({ name }): Column<number> => ({
      title: name,
      numeric: true,
      cell: (index) => shortFigure(rates[name][index] ?? 0),
    })),
  ];
  return <Table columns={columns} rows={rates.x.map((_, index) => index).reverse()} rowKey={(index) => index} />;
}
