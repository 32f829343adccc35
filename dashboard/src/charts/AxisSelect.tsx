import type { Unit } from "../domain/unit";
import { AXES, axisLabel, type Axis } from "./axis";

interface Props<A extends Axis> {
  axis: A;
  unit: Unit;
  onChange: (axis: A) => void;
  axes?: readonly A[];
  /** True if time and bytes are labeled as counted from the start of each run. */
  fromStart?: boolean;
}

/** Selection of the x axis: rounds or versions, time, or bytes. */
export function AxisSelect<A extends Axis>({ axis, unit, onChange, axes = AXES as readonly Axis[] as readonly A[], fromStart }: Props<A>) {
  return (
    <div className="segments" role="radiogroup" aria-label="X axis">
      {axes.map((option) => (
        <label key={option} data-testid={`axis-${option}`}>
          <input
            type="radio"
            name="axis"
            className="visually-hidden"
            checked={axis === option}
            onChange={() => onChange(option)}
          />
          <span>
            {axisLabel(option, unit, !axes.includes("clock" as A))}
            {fromStart && option !== "round" && " from start"}
          </span>
        </label>
      ))}
    </div>
  );
}
