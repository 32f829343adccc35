import { useCallback, useMemo } from "react";
import type { Job, JobNode, Version } from "../api/types";
import { RUN_AXES } from "../charts/axis";
import { AxisChoice } from "../charts/AxisChoice";
import { ChartChoices } from "../charts/ChartChoices";
import { LineChart } from "../charts/LineChart";
import { SYNC } from "../charts/lineOptions";
import { useLook, type Look } from "../charts/look";
import { within } from "../charts/series";
import { ShowAll } from "../charts/ShowAll";
import { thin, type Value } from "../charts/thin";
import { useZoom, type KeptZoom } from "../charts/zoom";
import { clientMetric } from "../clients/spread";
import { useSpread } from "../clients/useSpread";
import { namesIn, type What } from "../format/metric";
import { byNumber, visible } from "../format/text";
import { unitOf, type Unit } from "../format/unit";
import { useText } from "../router";

interface Props {
  job: Job;
  versions: Version[];
  nodes: JobNode[];
}

/** Accuracy and loss side by side, along the same axis and with the same zoom, and how clients lie around them. */
export function MetricCharts({ job, versions, nodes }: Props) {
  const { setAxis, ...choices } = useLook();
  const { look } = choices;
  const zoom = useZoom("zoom", SYNC);
  const [isolated, setIsolated] = useText("client");
  const unit = unitOf(job);
  const { zoom: current, keep } = zoom;
  const forget = useCallback(() => {
    current.current = null;
    keep(null);
  }, [current, keep]);
  const shared = { job, versions, look, unit, zoom, isolated, onIsolate: setIsolated };
  return (
    <section className="metric-charts" aria-label="Accuracy and loss">
      <div className="toolbar">
        <h2>Learning</h2>
        <ShowAll zoom={zoom} />
        <ChartChoices {...choices} onScale={forget} />
        {nodes.length > 0 && <NodeChoice nodes={nodes} chosen={isolated} onChoose={setIsolated} />}
        <AxisChoice
          axis={look.axis}
          axes={RUN_AXES}
          unit={unit}
          onChange={(chosen) => {
            forget();
            setAxis(chosen);
          }}
        />
      </div>
      <div className="pair">
        <div className="panel">
          <MetricChart what="accuracy" {...shared} />
        </div>
        <div className="panel">
          <MetricChart what="loss" {...shared} />
        </div>
      </div>
    </section>
  );
}

interface MetricProps {
  what: What;
  job: Job;
  versions: Version[];
  look: Look;
  unit: Unit;
  zoom: KeptZoom;
  isolated: string;
  onIsolate: (node: string) => void;
}

/** A chart is some hundred pixels wide: more points than that are drawn on top of each other. */
const DRAWN_MAX = 600;

function MetricChart({ what, job, versions: all, look, unit, zoom, isolated, onIsolate }: MetricProps) {
  const { range } = zoom;
  const versions = useMemo(() => {
    const near = range === null ? all : within(all, look.axis, range);
    const values = namesIn(what, near).map((name): Value => ({ metrics }) => metrics[name]);
    return thin(near, DRAWN_MAX, values);
  }, [all, what, range, look.axis]);
  const metric = useMemo(() => clientMetric(namesIn(what, versions)), [what, versions]);
  const { spread, spreadAt, pick } = useSpread(job, metric, versions, isolated, onIsolate);
  const whole = useCallback(() => ({ versions: all, spread: spreadAt(all) }), [all, spreadAt]);
  return <LineChart what={what} versions={versions} whole={whole} look={look} unit={unit} zoom={zoom} spread={spread} onPick={pick} />;
}

interface NodeChoiceProps {
  nodes: JobNode[];
  chosen: string;
  onChoose: (node: string) => void;
}

/** The same as a click on a node's line, for those who do not point. */
function NodeChoice({ nodes, chosen, onChoose }: NodeChoiceProps) {
  const names = nodes.map(({ name }) => name).sort(byNumber);
  return (
    <label className="node-choice">
      node{" "}
      <select data-testid="client" value={chosen} onChange={(event) => onChoose(event.target.value)}>
        <option value="">all</option>
        {(chosen === "" || names.includes(chosen) ? names : [chosen, ...names]).map((name) => (
          <option key={name} value={name}>
            {visible(name)}
          </option>
        ))}
      </select>
    </label>
  );
}
