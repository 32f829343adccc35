import type { Version } from "../api/types";
import { metricNamesIn } from "../domain/metrics";
import { sparkPath } from "./sparkPath";

/** Return the accuracies of a run, or its losses if it has no accuracy. */
export function sparklineValues(versions: Version[]): (number | undefined)[] {
  const name = metricNamesIn("accuracy", versions)[0] ?? metricNamesIn("loss", versions)[0];
  return name === undefined ? [] : versions.map((version) => version.metrics[name]);
}

interface Props {
  /** undefined: not measured. */
  values: (number | undefined)[];
  width?: number;
  height?: number;
}

/** A small line chart without axes. It is hidden from screen readers, because a figure stands beside it. */
export function Sparkline({ values, width = 104, height = 28 }: Props) {
  const spark = sparkPath(values, width, height);
  return (
    <svg className="spark" viewBox={`0 0 ${width} ${height}`} width={width} height={height} aria-hidden="true">
      {spark && (
        <>
          <path d={spark.area} className="spark-area" />
          <path d={spark.line} className="spark-line" />
          {spark.end && <circle cx={spark.end[0]} cy={spark.end[1]} r="2.2" className="spark-end" />}
          {spark.crosses.map((x) => (
            <path key={x} d={`M${x - 2} 2l4 4m0-4l-4 4`} className="spark-cross" />
          ))}
        </>
      )}
    </svg>
  );
}
