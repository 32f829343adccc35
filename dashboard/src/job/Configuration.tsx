import { visible } from "../format/text";
import { flatten } from "./flatten";
import type { ViewProps } from "./tabs";

/** The job file as it was submitted. */
export function Configuration({ job }: ViewProps) {
  const rows = flatten(job.spec);
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
