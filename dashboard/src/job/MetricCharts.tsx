import { useCallback, useState } from "react";
import type { Version } from "../api/types";
import { RUN_AXES } from "../charts/axis";
import { AxisChoice } from "../charts/AxisChoice";
import { ChartChoices } from "../charts/ChartChoices";
import { LineChart } from "../charts/LineChart";
import { SYNC } from "../charts/lineOptions";
import { useLook } from "../charts/look";
import { resetZoom, type Range, type Zoom } from "../charts/options";
import type { Unit } from "../format/unit";
import { Icon } from "../ui/Icon";

/** Accuracy and loss side by side, along the same axis and with the same zoom. */
export function MetricCharts({ versions, unit }: { versions: Version[]; unit: Unit }) {
  const { setAxis, setZoom, zoom: range, ...choices } = useLook();
  const { look } = choices;
  const [zoom] = useState<Zoom>(() => ({ current: range }));
  const changed = useCallback((shown: Range | null) => setZoom(shown), [setZoom]);
  const forget = () => {
    zoom.current = null;
    setZoom(null);
  };
  return (
    <section className="metric-charts" aria-label="Accuracy and loss">
      <div className="toolbar">
        <h2>Learning</h2>
        {range !== null && (
          <button
            type="button"
            className="quiet-button"
            data-testid="show-all"
            onClick={() => {
              resetZoom(zoom, SYNC);
              setZoom(null);
            }}
          >
            <Icon name="zoom" /> Show all
          </button>
        )}
        <ChartChoices {...choices} onScale={forget} />
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
          <LineChart what="accuracy" versions={versions} look={look} unit={unit} zoom={zoom} onZoom={changed} />
        </div>
        <div className="panel">
          <LineChart what="loss" versions={versions} look={look} unit={unit} zoom={zoom} onZoom={changed} />
        </div>
      </div>
    </section>
  );
}
