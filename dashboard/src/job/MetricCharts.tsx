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
import { kindsIn, namesIn } from "../format/metric";
import { byNumber, visible } from "../format/text";
import { unitOf, type Unit } from "../format/unit";
import { useText } from "../router";

interface Props {
  job: Job;
  versions: Version[];
  nodes: JobNode[];
}

/** Two kinds of metric side by side, along the same axis and with the same zoom, and how clients lie around them. */
export function MetricCharts({ job, versions, nodes }: Props) {
  const { setAxis, ...choices } = useLook();
  const { look } = choices;
  const zoom = useZoom("zoom", SYNC);
  const [isolated, setIsolated] = useText("client");
  const kinds = kindsIn(versions);
  const [left, setLeft] = useText("left");
  const [right, setRight] = useText("right");
  const shown = [kinds.includes(left) ? left : "accuracy", kinds.includes(right) ? right : "loss"] as const;
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
        {kinds.length > 2 && (
          <>
            <KindChoice name="left" kinds={kinds} chosen={shown[0]} onChoose={setLeft} />
            <KindChoice name="right" kinds={kinds} chosen={shown[1]} onChoose={setRight} />
          </>
        )}
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
          <MetricChart key={shown[0]} what={shown[0]} {...shared} />
        </div>
        <div className="panel">
          <MetricChart key={`right ${shown[1]}`} what={shown[1]} {...shared} />
        </div>
      </div>
    </section>
  );
}

interface MetricProps {
  what: string;
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

interface KindChoiceProps {
  name: "left" | "right";
  kinds: string[];
  chosen: string;
  onChoose: (kind: string) => void;
}

/** Which of all metrics that were reported a chart shows. */
function KindChoice({ name, kinds, chosen, onChoose }: KindChoiceProps) {
  return (
    <label className="node-choice">
      {name}{" "}
      <select data-testid={`kind-${name}`} value={chosen} onChange={(event) => onChoose(event.target.value)}>
        {kinds.map((kind) => (
          <option key={kind} value={kind}>
            {visible(kind)}
          </option>
        ))}
      </select>
    </label>
  );
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
