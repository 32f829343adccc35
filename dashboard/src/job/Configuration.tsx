import { KeyValueList } from "../ui/KeyValueList";
import type { ViewProps } from "./viewProps";

/** The submitted job file, and later changes. */
export function Configuration({ job }: ViewProps) {
  if (Object.keys(job.spec).length === 0) return null;
  return (
    <section aria-label="Configuration">
      <Changes values={job.settings_changed} title="Changed since the start" />
      <Changes values={job.settings_pending} title="Changes from the next round" />
      <KeyValueList values={job.spec} className="configuration" />
    </section>
  );
}

function Changes({ values, title }: { values: Record<string, number> | undefined; title: string }) {
  const entries = Object.entries(values ?? {});
  if (entries.length === 0) return null;
  return (
    <p className="sub" data-testid="changed">
      {title}: {entries.map(([key, value]) => `${key} = ${value}`).join(", ")}
    </p>
  );
}
