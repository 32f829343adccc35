import type { Version } from "../api/types";
import { namesIn } from "../format/metric";
import { sparkPath } from "./sparkPath";

const WIDTH = 104;
const HEIGHT = 28;

/** The accuracy so far (or the loss, where there is no accuracy), small; the figure beside it says it in words. */
export function Sparkline({ versions }: { versions: Version[] }) {
  const [accuracy] = namesIn("accuracy", versions);
  const name = accuracy ?? namesIn("loss", versions)[0];
  const values = name === undefined ? [] : versions.map((version) => version.metrics[name]);
  return <Spark values={values} width={WIDTH} height={HEIGHT} />;
}

interface Props {
  /** What was not measured is passed by. */
  values: (number | undefined)[];
  width: number;
  height: number;
}

export function Spark({ values, width, height }: Props) {
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
