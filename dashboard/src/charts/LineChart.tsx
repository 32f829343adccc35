import { useCallback, useMemo, useRef, useState } from "react";
import type uPlot from "uplot";
import type { Version } from "../api/types";
import { namesIn, wordsFor, type What } from "../format/metric";
import { count, figure, percent } from "../format/number";
import type { Unit } from "../format/unit";
import { axisLabel, type Axis } from "./axis";
import { ChartFrame } from "./ChartFrame";
import { lineOptions } from "./lineOptions";
import { LineReadout, newest } from "./LineReadout";
import type { Look } from "./look";
import type { Range, Zoom } from "./options";
import { Plot } from "./Plot";
import { buildLines } from "./series";
import { smooth, SMOOTHING } from "./smooth";
import { seriesCsv, SeriesTable } from "./SeriesTable";
import { useTokens } from "./tokens";

interface Props {
  what: What;
  versions: Version[];
  look: Look;
  unit: Unit;
  zoom: Zoom;
  onZoom: (range: Range | null) => void;
}

const HEIGHT = 216;
const TITLE: Record<What, string> = { accuracy: "Accuracy", loss: "Loss" };
const WRITE = { accuracy: (value: number | undefined) => percent(value), loss: figure };

/** All metrics of one kind over the run. */
export function LineChart({ what, versions, look, unit, zoom, onZoom }: Props) {
  const tokens = useTokens();
  const { axis } = look;
  const [pointed, setPointed] = useState<number | null>(null);
  const joined = namesIn(what, versions).join("\n");
  const names = useMemo(() => (joined === "" ? [] : joined.split("\n")), [joined]);
  const lines = useMemo(() => buildLines(versions, names, axis), [versions, names, axis]);
  const keep = SMOOTHING[look.smoothing];
  const data = useMemo(
    () => [lines.x, ...lines.y, ...(keep > 0 ? lines.y.map((line) => smooth(line, keep)) : [])] as uPlot.AlignedData,
    [lines, keep],
  );
  const current = useRef(lines);
  // Before any effect of this redraw: the plot asks for the marks of the data that it is about to get.
  current.current = lines;
  const make = useCallback(
    (width: number, height: number) => {
      const settings = { what, names, look, tokens, zoom, lines: () => current.current, onZoom, onPoint: setPointed };
      return lineOptions(settings, width, height);
    },
    [tokens, look, what, names, zoom, onZoom],
  );
  const at = pointed === null ? undefined : versions[pointed];
  return (
    <ChartFrame
      title={TITLE[what]}
      testId={`chart-${what}`}
      label={describe(what, versions, names, axis, unit)}
      height={HEIGHT}
      empty={names.length === 0 ? `No ${what} has been reported yet.` : null}
      readout={<LineReadout names={names} versions={versions} at={at} axis={axis} unit={unit} write={WRITE[what]} />}
      plot={<Plot make={make} data={data} height={HEIGHT} />}
      table={() => <SeriesTable versions={versions} names={names} unit={unit} write={WRITE[what]} />}
      csv={() => seriesCsv(versions, names, unit)}
    />
  );
}

function describe(what: What, versions: Version[], names: string[], axis: Axis, unit: Unit): string {
  const parts = names.map((name) => {
    const version = newest(versions, name);
    return `${wordsFor(name)} ${WRITE[what](version?.metrics[name])} at ${unit} ${count(version?.number ?? 0)}`;
  });
  return `${TITLE[what]} by ${axisLabel(axis, unit).toLowerCase()}: ${parts.join("; ")}`;
}
