import { visible } from "../format/text";
import { flatten } from "./flatten";

/** The job file as it was submitted, folded away until somebody asks. */
export function Configuration({ spec }: { spec: Record<string, unknown> }) {
  const rows = flatten(spec);
  if (rows.length === 0) return null;
  return (
    <details className="configuration">
      <summary>Configuration</summary>
      <dl className="panel">
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>
              <bdi>{visible(name)}</bdi>
            </dt>
            <dd>
              <bdi>{visible(value)}</bdi>
            </dd>
          </div>
        ))}
      </dl>
    </details>
  );
}
