import { useCallback, useState } from "react";
import type { Version } from "../api/types";
import { AXES } from "../charts/axis";
import { AxisChoice } from "../charts/AxisChoice";
import { LineChart } from "../charts/LineChart";
import { SYNC } from "../charts/lineOptions";
import { resetZoom, type Zoom } from "../charts/options";
import type { Unit } from "../format/unit";
import { useChoice } from "../router";
import { Icon } from "../ui/Icon";

/** Accuracy and loss side by side, along the same axis and with the same zoom. */
export function MetricCharts({ versions, unit }: { versions: Version[]; unit: Unit }) {
  const [axis, setAxis] = useChoice("x", AXES);
  const [zoom] = useState<Zoom>(() => ({ current: null }));
  const [zoomed, setZoomed] = useState(false);
  const changed = useCallback((value: boolean) => setZoomed(value), []);
  const showAll = () => {
    resetZoom(zoom, SYNC);
    setZoomed(false);
  };
  return (
    <section className="metric-charts" aria-label="Accuracy and loss">
      <div className="toolbar">
        <h2>Learning</h2>
        {zoomed && (
          <button type="button" className="quiet-button" onClick={showAll}>
            <Icon name="zoom" /> Show all
          </button>
        )}
        <AxisChoice
          axis={axis}
          unit={unit}
          onChange={(chosen) => {
            zoom.current = null;
            setZoomed(false);
            setAxis(chosen);
          }}
        />
      </div>
      <div className="pair">
        <div className="panel">
          <LineChart what="accuracy" versions={versions} axis={axis} unit={unit} zoom={zoom} onZoom={changed} />
        </div>
        <div className="panel">
          <LineChart what="loss" versions={versions} axis={axis} unit={unit} zoom={zoom} onZoom={changed} />
        </div>
      </div>
    </section>
  );
}
