import { useQuery } from "@tanstack/react-query";
import type { Job } from "../api/types";
import { plural } from "../format/number";
import { capitalize, escapeHidden } from "../format/text";
import { switchPreviewQuery } from "../queries/jobs";
import { ErrorMessage } from "../ui/ErrorMessage";
import { Icon } from "../ui/Icon";
import { Loading } from "../ui/QueryStatus";

/** The coordinator's description of a mode switch, with the nodes that can take part. */
export function SwitchPreview({ job, to }: { job: Job; to: "gossip" | "server" }) {
  const { data: preview, error } = useQuery(switchPreviewQuery(job.name, to));
  if (error) return <ErrorMessage error={error} />;
  if (preview === undefined) return <Loading />;
  return (
    <div data-testid="preview">
      <p>
        {!preview.possible && <Icon name="warning" />} {escapeHidden(capitalize(preview.why))}.
      </p>
      {preview.hint && <p className="hint">{escapeHidden(preview.hint)}</p>}
      {preview.asked.length > 0 && (
        <Names summary={`${plural(preview.asked.length, "node")} can take part`} names={preview.asked} />
      )}
      {preview.unable.length > 0 && (
        <Names summary={`${plural(preview.unable.length, "node")} cannot take part: no address for peers`} names={preview.unable} />
      )}
    </div>
  );
}

function Names({ summary, names }: { summary: string; names: string[] }) {
  return (
    <details>
      <summary>{summary}</summary>
      <p className="hint node-names">{names.map(escapeHidden).join(", ")}</p>
    </details>
  );
}
