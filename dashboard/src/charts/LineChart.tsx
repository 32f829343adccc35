import { useCallback, useMemo, useRef, useState } from "react";
import type uPlot from "uplot";
import type { Version } from "../api/types";
import { colourOf, namesIn, wordsFor, type What } from "../format/metric";
import { count, figure, percent } from "../format/number";
import { AXIS_LABEL, place, type Axis } from "./axis";
import { ChartFrame } from "./ChartFrame";
import { divergedMarks } from "./diverged";
import { pointer, xAxis, xScale, yAxis, zoomHooks, type Zoom } from "./options";
import { Plot } from "./Plot";
import { accuracyRange, buildLines, lossRange } from "./series";
import { SeriesTable } from "./SeriesTable";
import { useTokens } from "./tokens";

interface Props {
  what: What;
  versions: Version[];
  axis: Axis;
  zoom: Zoom;
  onZoom: (zoomed: boolean) => void;
}

const HEIGHT = 216;
const TITLE: Record<What, string> = { accuracy: "Accuracy", loss: "Loss" };
/** What was measured while training is a hint, not a result: it is drawn dashed. */
const dash = (name: string) => (name.startsWith("train/") ? [4, 4] : undefined);

/** All metrics of one kind over the run. */
export function LineChart({ what, versions, axis, zoom, onZoom }: Props) {
  const tokens = useTokens();
  const [hovered, setHovered] = useState<number | null>(null);
  const joined = namesIn(what, versions).join("\n");
  const names = useMemo(() => (joined === "" ? [] : joined.split("\n")), [joined]);
  const lines = useMemo(() => buildLines(versions, names, axis), [versions, names, axis]);
  const current = useRef(lines);
  const write = what === "accuracy" ? percent : figure;
  const marks = useCallback(() => current.current, []);
  // Before any effect of this redraw: the plot asks for the marks of the data that it is about to get.
  current.current = lines;

  const make = useCallback(
    (width: number, height: number): uPlot.Options => {
      const { cursor, plugin } = pointer(tokens, "metrics", setHovered);
      const strokes = names.map((name) => tokens.series[colourOf(name)] ?? tokens.ink2);
      const tickOf = (value: number) => (what === "accuracy" ? percent(value, 0) : figureTick(value));
      return {
        width,
        height,
        cursor,
        plugins: [plugin, zoomHooks(zoom, "metrics", onZoom), divergedMarks(marks, strokes, tokens, what === "loss" ? "top" : "bottom")],
        legend: { show: false },
        padding: [10, 18, 0, 0],
        scales: { x: xScale(zoom), y: {
            range: (_, low, high) =>
              what === "accuracy" ? accuracyRange(low, high) : lossRange(low, high, marks().diverged.length > 0),
          } },
        axes: [xAxis(axis, tokens), yAxis(tokens, tickOf)],
        series: [
          {},
          ...names.map((name, index) => ({
            label: name,
            stroke: strokes[index],
            width: colourOf(name) === 0 ? 2 : 1.5,
            dash: dash(name),
            points: { show: versionsAreFew, size: 5 },
          })),
        ],
      };
    },
    [tokens, axis, what, names, zoom, onZoom, marks],
  );

  const data = useMemo(() => [lines.x, ...lines.y] as uPlot.AlignedData, [lines]);
  const at = hovered !== null && versions[hovered] ? hovered : null;
  return (
    <ChartFrame
      title={TITLE[what]}
      testId={`chart-${what}`}
      label={describe(what, versions, names, axis)}
      height={HEIGHT}
      empty={names.length === 0 ? `No ${what} has been reported yet.` : null}
      readout={<Readout names={names} versions={versions} at={at} axis={axis} write={write} />}
      plot={<Plot make={make} data={data} height={HEIGHT} />}
      table={() => <SeriesTable versions={versions} names={names} write={write} />}
    />
  );
}

/** Single points are marked while they are few; uPlot asks at every redraw. */
const versionsAreFew = (plot: uPlot) => plot.data[0].length <= 2;

const figureTick = (value: number) => (value === 0 ? "0" : figure(value).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, ""));

interface ReadoutProps {
  names: string[];
  versions: Version[];
  /** The version under the pointer, null for the newest. */
  at: number | null;
  axis: Axis;
  write: (value: number | undefined) => string;
}

function Readout({ names, versions, at, axis, write }: ReadoutProps) {
  return (
    <>
      {names.map((name) => {
        const version = at === null ? versions.findLast((v) => v.metrics[name] !== undefined) : versions[at];
        const value = version?.metrics[name];
        return (
          <span key={name} className="readout-item">
            <i className={`swatch series-${colourOf(name) + 1}${dash(name) ? " dashed" : ""}`} />
            {wordsFor(name)} <b className={value !== undefined && !Number.isFinite(value) ? "bad" : ""}>{write(value)}</b>
          </span>
        );
      })}
      <span className="readout-place">{at === null ? "" : place(versions[at] as Version, axis)}</span>
    </>
  );
}

function describe(what: What, versions: Version[], names: string[], axis: Axis): string {
  const write = what === "accuracy" ? percent : figure;
  const parts = names.map((name) => {
    const version = versions.findLast((v) => v.metrics[name] !== undefined);
    return `${wordsFor(name)} ${write(version?.metrics[name])} at round ${count(version?.number ?? 0)}`;
  });
  return `${TITLE[what]} by ${AXIS_LABEL[axis].toLowerCase()}: ${parts.join("; ")}`;
}
