import { useCallback, useMemo, useRef, useState } from "react";
import type uPlot from "uplot";
import type { Version } from "../api/types";
import { colourOf, namesIn, toldTogether, wordsFor } from "../format/metric";
import { count, figure, percent, plural } from "../format/number";
import { capital, type Unit } from "../format/unit";
import { clientMetric, type Spread } from "../clients/spread";
import { axisLabel, place, type Axis } from "./axis";
import { ChartFrame } from "./ChartFrame";
import { lineOptions } from "./lineOptions";
import { LineReadout, newest, SpreadReadout } from "./LineReadout";
import type { Look } from "./look";
import type { Pick } from "./picking";
import { Plot } from "./Plot";
import { buildLines, none, withLine } from "./series";
import { smooth, SMOOTHING } from "./smooth";
import { seriesCsv, SeriesTable } from "./SeriesTable";
import { useTokens } from "./tokens";
import type { KeptZoom } from "./zoom";

interface Props {
  /** The kind of metric. */
  what: string;
  /** Those that are drawn. */
  versions: Version[];
  /** All that are known, for a table and a file. */
  whole: () => { versions: Version[]; spread: Spread | undefined };
  look: Look;
  unit: Unit;
  zoom: KeptZoom;
  /** How clients lie around the first line that they report themselves. */
  spread: Spread | undefined;
  onPick: Pick;
}

const HEIGHT = 216;
const titleOf = (what: string): string => capital(what.replaceAll("_", " "));
const writing = (what: string) => (what === "accuracy" ? (value: number | undefined) => percent(value) : figure);

/** All metrics of one kind over the run. */
export function LineChart({ what, versions, whole, look, unit, zoom: { zoom, keep }, spread, onPick }: Props) {
  const tokens = useTokens();
  const { axis } = look;
  const [pointed, setPointed] = useState<number | null>(null);
  const joined = namesIn(what, versions).join("\n");
  const names = useMemo(() => (joined === "" ? [] : joined.split("\n")), [joined]);
  const lines = useMemo(() => buildLines(versions, names, axis), [versions, names, axis]);
  const weight = SMOOTHING[look.smoothing];
  const around = useMemo(() => [spread?.high, spread?.low, spread?.alone].map((line) => line ?? none(lines)), [lines, spread]);
  const data = useMemo(() => {
    const smoothed = weight > 0 ? lines.y.map((line) => smooth(line, weight)) : [];
    return [lines.x, ...lines.y, ...smoothed, ...around] as uPlot.AlignedData;
  }, [lines, weight, around]);
  const current = useRef({ marked: lines, onPick });
  // Before any effect of this redraw: the plot asks for the marks of the data that it is about to get.
  current.current = { marked: withLine(lines, spread?.alone), onPick };
  const make = useCallback(
    (width: number, height: number) => {
      const lines = () => current.current.marked;
      const pick: Pick = (...where) => current.current.onPick(...where);
      const settings = { what, names, look, tokens, zoom, lines, onZoom: keep, onPoint: setPointed, onPick: pick };
      return lineOptions(settings, width, height);
    },
    [tokens, look, what, names, zoom, keep],
  );
  const at = pointed === null ? toldTogether(names, versions) : versions[pointed];
  const write = writing(what);
  return (
    <ChartFrame
      title={titleOf(what)}
      testId={`chart-${what}`}
      label={describe(what, versions, names, axis, unit)}
      height={HEIGHT}
      empty={names.length === 0 ? `No ${what} has been reported yet.` : null}
      readout={
        <>
          <LineReadout names={names} at={at} write={write} />
          {spread && <SpreadReadout spread={spread} at={at === undefined ? null : versions.indexOf(at)} colour={colourOf(clientMetric(names) ?? "")} write={write} />}
          <span className="readout-place">
            {at && place(at, axis, unit)}
            {at?.provisional && ` · ${count(at.provisional.reported)} of ${plural(at.provisional.asked, "node")}`}
          </span>
        </>
      }
      plot={<Plot make={make} data={data} height={HEIGHT} />}
      table={() => <SeriesTable {...whole()} names={names} unit={unit} write={write} />}
      csv={() => seriesCsv(whole().versions, names, unit, whole().spread)}
    />
  );
}

function describe(what: string, versions: Version[], names: string[], axis: Axis, unit: Unit): string {
  const parts = names.map((name) => {
    const version = newest(versions, name);
    return `${wordsFor(name)} ${writing(what)(version?.metrics[name])} at ${unit} ${count(version?.number ?? 0)}`;
  });
  return `${titleOf(what)} by ${axisLabel(axis, unit).toLowerCase()}: ${parts.join("; ")}`;
}
