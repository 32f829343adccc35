import { useMemo } from "react";
import { visible } from "../format/text";
import { UNKNOWN } from "../format/number";
import { jobPath, Link } from "../router";
import { differences } from "./differences";
import { Swatch } from "./RunsChart";
import type { Run } from "./runs";

/** What the runs were told differently. */
export function Differing({ runs }: { runs: Run[] }) {
  const { names, values } = useMemo(() => differences(runs), [runs]);
  if (runs.length < 2) return null;
  return (
    <section className="differing" aria-label="What differs" data-testid="differing">
      <h2>Configuration</h2>
      {names.length === 0 ? (
        <p className="sub">All runs have the same.</p>
      ) : (
        <div className="panel prices" tabIndex={0} role="region" aria-label="Differing settings, as a table">
          <table className="data-table">
            <thead>
              <tr>
                <th scope="col">Run</th>
                {names.map((name) => (
                  <th key={name} scope="col">
                    <bdi>{visible(name)}</bdi>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {runs.map(({ job }, index) => (
                <tr key={job.name}>
                  <th scope="row">
                    <Swatch run={index} />
                    <Link href={jobPath(job.name)}>{job.name}</Link>
                  </th>
                  {names.map((name) => (
                    <Cell key={name} text={visible(values[index]?.get(name) ?? UNKNOWN)} />
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

const LONG = 28;

/** A short value stays on one line, a long one takes several. */
function Cell({ text }: { text: string }) {
  return (
    <td>
      <bdi data-long={text.length > LONG || undefined}>{text}</bdi>
    </td>
  );
}
