import { useCallback, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import { ChartFrame } from "../charts/ChartFrame";
import { pointer, xAxis, xScale, yAxis, zoomHooks } from "../charts/options";
import { toCsv } from "../charts/csv";
import { Plot } from "../charts/Plot";
import { shortFigure } from "../charts/axis";
import { useTokens, type Tokens } from "../charts/tokens";
import type { KeptZoom } from "../charts/zoom";
import { duration } from "../format/time";
import type { Jump, Rates } from "./drift";

const HEIGHT = 168;
export const SYNC = "drift";

type What = "synchronisations" | "violations";
/** A part of a bar: its name, its colour (an index into the theme's series), and its rate per minute. */
type Part = [name: string, series: number, values: (rates: Rates) => number[]];

const PARTS: Record<What, Part[]> = {
  synchronisations: [
    ["full", 0, (rates) => rates.full],
    ["partial", 1, (rates) => rates.partial],
  ],
  violations: [["violations", 2, (rates) => rates.violations]],
};
const TITLE: Record<What, string> = {
  synchronisations: "Synchronisations per minute",
  violations: "Violations per minute",
};

interface Props {
  what: What;
  rates: Rates;
  jumps: Jump[];
  /** Of all rates. */
  zoom: KeptZoom;
}

/** Bars over time, and a mark where the data seem to have changed. */
export function RateChart({ what, rates, jumps, zoom: kept }: Props) {
  const tokens = useTokens();
  const [hovered, setHovered] = useState<number | null>(null);
  const { zoom, keep } = kept;
  const parts = PARTS[what];
  // Parts stand on one another: the tallest bar is drawn first, and each covers the foot of the one behind it.
  const data = useMemo(() => [rates.x, ...stacked(parts.map(([, , values]) => values(rates)))] as uPlot.AlignedData, [
    rates,
    parts,
  ]);
  const marks = useRef(jumps);
  marks.current = jumps;
  const end = useRef(0);
  end.current = rates.x.length * rates.width;
  const make = useCallback(
    (width: number, height: number): uPlot.Options => {
      const { cursor, plugin } = pointer(tokens, SYNC, setHovered);
      const bars = uPlot.paths.bars?.({ size: [0.8, 26] });
      return {
        width,
        height,
        cursor: { ...cursor, points: { show: false } },
        plugins: [plugin, zoomHooks(zoom, SYNC, keep), jumpMarks(() => marks.current, tokens)],
        legend: { show: false },
        padding: [14, 18, 0, 0],
        scales: {
          x: { ...xScale(zoom), range: () => (zoom.current ? [zoom.current.min, zoom.current.max] : [0, end.current]) },
          y: { range: (_, __, high) => [0, Math.max(high ?? 0, 1) * 1.06] },
        },
        axes: [xAxis("time", tokens), yAxis(tokens, shortFigure)],
        series: [
          {},
          ...parts.toReversed().map(
            ([label, series]): uPlot.Series => ({
              label,
              fill: tokens.series[series],
              width: 0,
              paths: bars,
              points: { show: false },
            }),
          ),
        ],
      };
    },
    [tokens, zoom, keep, parts],
  );
  const at = hovered !== null && hovered < rates.x.length ? hovered : rates.x.length - 1;
  const total = parts.map(([name, , values]) => `${name} at most ${shortFigure(Math.max(...values(rates)))}`).join(", ");
  const change = jumps.map(({ from }) => `; the data seem to have changed at ${duration(from)}`).join("");
  return (
    <ChartFrame
      title={TITLE[what]}
      testId={`chart-${what}`}
      label={`${TITLE[what]}: ${total}${change}`}
      height={HEIGHT}
      zoom={kept}
      empty={parts.some(([, , values]) => values(rates).some((value) => value > 0)) ? null : `No ${what} yet.`}
      readout={
        <>
          {parts.map(([name, series, values]) => (
            <span key={name} className="readout-item">
              <i className={`swatch block fill-${series + 1}`} />
              {name} <b>{shortFigure(values(rates)[at] ?? 0)}</b>
            </span>
          ))}
          <span className="readout-place">{span(rates, at)}</span>
        </>
      }
      plot={<Plot make={make} data={data} height={HEIGHT} />}
      table={() => <RateTable rates={rates} parts={parts} />}
      csv={() =>
        toCsv(
          ["from_s", "to_s", ...parts.map(([name]) => `${name}_per_minute`)],
          rates.x.map((_, index) => [
            index * rates.width,
            (index + 1) * rates.width,
            ...parts.map(([, , values]) => values(rates)[index]),
          ]),
        )
      }
    />
  );
}

/** From the whole height of the bars to that of the lowest part alone; no bar where its own part is nothing. */
function stacked(parts: number[][]): (number | null)[][] {
  const below = new Array<number>(parts[0]?.length ?? 0).fill(0);
  const heights = parts.map((values) =>
    values.map((value, index) => {
      below[index]! += value;
      return value > 0 ? below[index]! : null;
    }),
  );
  return heights.reverse();
}

const span = ({ width }: Rates, index: number) => `${duration(index * width)} – ${duration((index + 1) * width)}`;

function jumpMarks(jumps: () => Jump[], tokens: Tokens): uPlot.Plugin {
  return {
    hooks: {
      draw: ({ ctx, bbox, valToPos }) => {
        const ratio = devicePixelRatio;
        ctx.save();
        ctx.strokeStyle = ctx.fillStyle = tokens.warn;
        ctx.lineWidth = 1.5 * ratio;
        ctx.font = tokens.font.replace("11px", `600 ${11 * ratio}px`);
        for (const { from, rise } of jumps()) {
          const x = valToPos(from, "x", true);
          if (x < bbox.left || x > bbox.left + bbox.width) continue;
          ctx.setLineDash([4 * ratio, 3 * ratio]);
          ctx.beginPath();
          ctx.moveTo(x, bbox.top - 8 * ratio);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
          const right = x < bbox.left + bbox.width * 0.8;
          ctx.textAlign = right ? "left" : "right";
          ctx.fillText(`drift ×${rise.toFixed(1)}`, x + (right ? 5 : -5) * ratio, bbox.top);
        }
        ctx.restore();
      },
    },
  };
}

function RateTable({ rates, parts }: { rates: Rates; parts: Part[] }) {
  return (
    <table className="data-table">
      <thead>
        <tr>
          <th scope="col">Time</th>
          {parts.map(([name]) => (
            <th key={name} scope="col" className="num">
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rates.x
          .map((_, index) => (
            <tr key={index}>
              <th scope="row">{span(rates, index)}</th>
              {parts.map(([name, , values]) => (
                <td key={name} className="num">
                  {shortFigure(values(rates)[index] ?? 0)}
                </td>
              ))}
            </tr>
          ))
          .reverse()}
      </tbody>
    </table>
  );
}
