import { useCallback, useMemo } from "react";
import type { Job, JobNode, Version } from "../api/types";
import { RUN_AXES } from "../charts/axis";
import { AxisSelect } from "../charts/AxisSelect";
import { LineChart } from "../charts/LineChart";
import { METRICS_SYNC } from "../charts/lineOptions";
import { ResetZoomButton } from "../charts/ResetZoomButton";
import { ScaleControls } from "../charts/ScaleControls";
import { versionsInRange } from "../charts/series";
import { useChartSettings, type ChartSettings } from "../charts/useChartSettings";
import { useZoom, type ChartZoom } from "../charts/useZoom";
import { useClientSpread } from "../clients/useClientSpread";
import { downsample, type Value } from "../domain/downsample";
import { clientMetric, metricKindsIn, metricNamesIn } from "../domain/metrics";
import { unitOf, type Unit } from "../domain/unit";
import { escapeHidden, naturalOrder } from "../format/text";
import { useTextParam } from "../router/router";

interface Props {
  job: Job;
  versions: Version[];
  nodes: JobNode[];
}

/** Two charts of metrics side by side, with the same axis and zoom. */
export function MetricCharts({ job, versions, nodes }: Props) {
  const { settings, setAxis, ...setters } = useChartSettings();
  const zoom = useZoom("zoom", METRICS_SYNC);
  const [selected, setSelected] = useTextParam("client");
  const kinds = metricKindsIn(versions);
  const [left, setLeft] = useTextParam("left");
  const [right, setRight] = useTextParam("right");
  const leftKind = kinds.includes(left) ? left : "accuracy";
  const rightKind = kinds.includes(right) ? right : "loss";
  const unit = unitOf(job);
  const { zoom: zoomRef, setRange } = zoom;
  const clearZoom = useCallback(() => {
    zoomRef.current = null;
    setRange(null);
  }, [zoomRef, setRange]);
  const shared = { job, versions, settings, unit, zoom, selected, onSelect: setSelected };
  return (
    <section className="metric-charts" aria-label="Metrics">
      <div className="toolbar">
        <h2>Metrics</h2>
        <ResetZoomButton zoom={zoom} />
        {kinds.length > 2 && (
          <>
            <KindSelect name="left" kinds={kinds} value={leftKind} onChange={setLeft} />
            <KindSelect name="right" kinds={kinds} value={rightKind} onChange={setRight} />
          </>
        )}
        <ScaleControls settings={settings} {...setters} onScaleChange={clearZoom} />
        {nodes.length > 0 && <NodeSelect nodes={nodes} value={selected} onChange={setSelected} />}
        <AxisSelect
          axis={settings.axis}
          axes={RUN_AXES}
          unit={unit}
          onChange={(axis) => {
            clearZoom();
            setAxis(axis);
          }}
        />
      </div>
      <div className="pair">
        <div className="panel">
          <MetricChart key={leftKind} kind={leftKind} {...shared} />
        </div>
        <div className="panel">
          <MetricChart key={`right ${rightKind}`} kind={rightKind} {...shared} />
        </div>
      </div>
    </section>
  );
}

interface MetricChartProps {
  kind: string;
  job: Job;
  versions: Version[];
  settings: ChartSettings;
  unit: Unit;
  zoom: ChartZoom;
  selected: string;
  onSelect: (node: string) => void;
}

/** More points than this would be drawn on top of each other. */
const POINTS_MAX = 600;

function MetricChart({ kind, job, versions: all, settings, unit, zoom, selected, onSelect }: MetricChartProps) {
  const { range } = zoom;
  const versions = useMemo(() => {
    const visible = range === null ? all : versionsInRange(all, settings.axis, range);
    const values = metricNamesIn(kind, visible).map((name): Value => ({ metrics }) => metrics[name]);
    return downsample(visible, POINTS_MAX, values);
  }, [all, kind, range, settings.axis]);
  const metric = useMemo(() => clientMetric(metricNamesIn(kind, versions)), [kind, versions]);
  const { spread, spreadAt, onPointClick } = useClientSpread(job, metric, versions, selected, onSelect);
  const allData = useCallback(() => ({ versions: all, spread: spreadAt(all) }), [all, spreadAt]);
  return <LineChart {...{ kind, versions, allData, settings, unit, zoom, spread, onPointClick }} />;
}

interface KindSelectProps {
  name: "left" | "right";
  kinds: string[];
  value: string;
  onChange: (kind: string) => void;
}

/** Selection of the metric that a chart shows. */
function KindSelect({ name, kinds, value, onChange }: KindSelectProps) {
  return (
    <label className="node-choice">
      {name}{" "}
      <select data-testid={`kind-${name}`} value={value} onChange={(event) => onChange(event.target.value)}>
        {kinds.map((kind) => (
          <option key={kind} value={kind}>
            {escapeHidden(kind)}
          </option>
        ))}
      </select>
    </label>
  );
}

interface NodeSelectProps {
  nodes: JobNode[];
  value: string;
  onChange: (node: string) => void;
}

/** Selection of the highlighted node, as an alternative to a click on its line. */
function NodeSelect({ nodes, value, onChange }: NodeSelectProps) {
  const names = nodes.map(({ name }) => name).sort(naturalOrder);
  return (
    <label className="node-choice">
      node{" "}
      <select data-testid="client" value={value} onChange={(event) => onChange(event.target.value)}>
        <option value="">all</option>
        {(value === "" || names.includes(value) ? names : [value, ...names]).map((name) => (
          <option key={name} value={name}>
            {escapeHidden(name)}
          </option>
        ))}
      </select>
    </label>
  );
}
