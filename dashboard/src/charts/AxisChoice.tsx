import type { Unit } from "../format/unit";
import { AXES, axisLabel, type Axis } from "./axis";

interface Props {
  axis: Axis;
  unit: Unit;
  onChange: (axis: Axis) => void;
}

/** What charts are drawn along: rounds or versions, time, or bytes. */
export function AxisChoice({ axis, unit, onChange }: Props) {
  return (
    <div className="segments" role="radiogroup" aria-label="Along">
      {AXES.map((option) => (
        <label key={option} data-testid={`axis-${option}`}>
          <input
            type="radio"
            name="axis"
            className="visually-hidden"
            checked={axis === option}
            onChange={() => onChange(option)}
          />
          <span>{axisLabel(option, unit)}</span>
        </label>
      ))}
    </div>
  );
}
