import type { Look, useLook } from "./look";
import { SMOOTHINGS } from "./smooth";

type Props = Pick<ReturnType<typeof useLook>, "setLogX" | "setLogY" | "setSmoothing"> & {
  look: Look;
  onScale: () => void;
};

/** Logarithmic axes and smoothing. */
export function ChartChoices({ look, setLogX, setLogY, setSmoothing, onScale }: Props) {
  return (
    <div className="chart-choices">
      <label>
        <input
          type="checkbox"
          data-testid="log-x"
          checked={look.logX}
          disabled={look.axis === "clock"}
          onChange={(event) => {
            onScale();
            setLogX(event.target.checked);
          }}
        />
        log x
      </label>
      <label>
        <input type="checkbox" data-testid="log-y" checked={look.logY} onChange={(event) => setLogY(event.target.checked)} />
        log y
      </label>
      <label>
        smooth{" "}
        <select
          data-testid="smooth"
          value={look.smoothing}
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
