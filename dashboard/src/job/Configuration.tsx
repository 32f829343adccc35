import { Pairs } from "../ui/Pairs";
import type { ViewProps } from "./tabs";

/** The job file as it was submitted. */
export function Configuration({ job }: ViewProps) {
  if (Object.keys(job.spec).length === 0) return null;
  return (
    <section aria-label="Configuration">
      <Pairs of={job.spec} className="configuration" />
    </section>
  );
}
