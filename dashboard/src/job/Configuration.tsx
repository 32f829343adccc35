import { visible } from "../format/text";
import { flatten } from "./flatten";

/** The job file as it was submitted. */
export function Configuration({ spec }: { spec: Record<string, unknown> }) {
  const rows = flatten(spec);
  if (rows.length === 0) return null;
  return (
    <section className="configuration" aria-label="Configuration">
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
    </section>
  );
}
