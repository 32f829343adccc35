import { SMOOTHINGS } from "./smoothing";
import type { ChartSettings, useChartSettings } from "./useChartSettings";

type Props = Pick<ReturnType<typeof useChartSettings>, "setLogX" | "setLogY" | "setSmoothing"> & {
  settings: ChartSettings;
  /** Called when the x scale changes, which invalidates the zoom. */
  onScaleChange: () => void;
};

/** Controls of logarithmic axes and smoothing. */
export function ScaleControls({ settings, setLogX, setLogY, setSmoothing, onScaleChange }: Props) {
  return (
    <div className="chart-choices">
      <label>
        <input
          type="checkbox"
          data-testid="log-x"
          checked={settings.logX}
          disabled={settings.axis === "clock"}
          onChange={(event) => {
            onScaleChange();
            setLogX(event.target.checked);
          }}
        />
        log x
      </label>
      <label>
        <input type="checkbox" data-testid="log-y" checked={settings.logY} onChange={(event) => setLogY(event.target.checked)} />
        log y
      </label>
      <label>
        smoothing{" "}
        <select
          data-testid="smooth"
          value={settings.smoothing}
          onChange={(event) => {
            const chosen = SMOOTHINGS.find((one) => one === event.target.value);
            if (chosen !== undefined) setSmoothing(chosen);
          }}
        >
          {SMOOTHINGS.map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
      </label>
    </div>
  );
}
