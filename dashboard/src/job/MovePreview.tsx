import { useQuery } from "@tanstack/react-query";
import { moveQuery } from "../api/queries";
import type { Job } from "../api/types";
import { plural } from "../format/number";
import { visible } from "../format/text";
import { Icon } from "../ui/Icon";
import { Problem } from "../ui/Problem";
import { Loading } from "../ui/Unanswered";

/** What the coordinator says that a switch would do now, and which nodes would take part. */
export function MovePreview({ job, to }: { job: Job; to: "gossip" | "server" }) {
  const { data: move, error } = useQuery(moveQuery(job.name, to));
  if (error) return <Problem error={error} />;
  if (move === undefined) return <Loading />;
  return (
    <div data-testid="preview">
      <p>
        {!move.possible && <Icon name="warning" />} {visible(capital(move.why))}.
      </p>
      {move.hint && <p className="hint">{visible(move.hint)}</p>}
      {move.asked.length > 0 && (
        <Names what={`${plural(move.asked.length, "node")} can take part`} names={move.asked} />
      )}
      {move.unable.length > 0 && (
        <Names
          what={`${plural(move.unable.length, "node")} cannot: no address at which other nodes could reach them`}
          names={move.unable}
        />
      )}
    </div>
  );
}

const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

function Names({ what, names }: { what: string; names: string[] }) {
  return (
    <details>
      <summary>{what}</summary>
      <p className="hint node-names">{names.map(visible).join(", ")}</p>
    </details>
  );
}
