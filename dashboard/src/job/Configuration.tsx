import { Pairs } from "../ui/Pairs";
import type { ViewProps } from "./tabs";

/** The job file as it was submitted, and what an operator has changed since. */
export function Configuration({ job }: ViewProps) {
  if (Object.keys(job.spec).length === 0) return null;
  return (
    <section aria-label="Configuration">
      <Changed values={job.changed} title="Changed since it began" />
      <Changed values={job.awaited} title="Changes from the next round on" />
      <Pairs of={job.spec} className="configuration" />
    </section>
  );
}

function Changed({ values, title }: { values: Record<string, number> | undefined; title: string }) {
  const entries = Object.entries(values ?? {});
  if (entries.length === 0) return null;
  return (
    <p className="sub" data-testid="changed">
      {title}: {entries.map(([key, value]) => `${key} = ${value}`).join(", ")}
    </p>
  );
}
