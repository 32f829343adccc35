import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { setAvailability, type Availability } from "../api/commands";
import { sessionQuery } from "../queries/session";
import { Icon, type IconName } from "../ui/Icon";
import { ErrorMessage } from "../ui/ErrorMessage";
import { nodeQuery } from "./queries";
import { Term } from "../ui/Term";

interface Step {
  to: Availability;
  text: string;
  icon: IconName;
  title: string;
}

const ACTIVATE: Step = { to: "active", text: "Activate", icon: "running", title: "Let the node get tasks again" };
const DRAIN: Step = { to: "drained", text: "Drain", icon: "paused", title: "The node finishes its tasks and gets no new ones" };
const BLOCK: Step = { to: "blocked", text: "Block", icon: "stopped", title: "Cancel the node's tasks and give it no new ones" };

const STEPS: Record<Availability, Step[]> = {
  active: [DRAIN, BLOCK],
  drained: [ACTIVATE, BLOCK],
  blocked: [ACTIVATE],
};

/** Buttons that change a node's availability, for operators. No confirmation, because each change can be undone. */
export function AvailabilityButtons({ node, availability }: { node: string; availability: Availability }) {
  const { data: role } = useQuery(sessionQuery);
  const client = useQueryClient();
  const change = useMutation({
    mutationFn: (to: Availability) => setAvailability(node, to),
    onSettled: () => client.invalidateQueries({ queryKey: nodeQuery(node).queryKey }),
  });
  if (role !== "operator") return null;
  return (
    <div className="controls">
      {STEPS[availability].map(({ to, text, icon, title }) => (
        <button
          key={to}
          type="button"
          className="button"
          title={title}
          disabled={change.isPending}
          data-testid={`make-${to}`}
          onClick={() => change.mutate(to)}
        >
          <Icon name={icon} /> {text}
        </button>
      ))}
      {change.error && <ErrorMessage error={change.error} />}
    </div>
  );
}

const WORDS: Record<Availability, string> = { active: "", drained: "Drained", blocked: "Blocked" };

/** Badge of a node that is not active; `explained`: with an explanation of the word. */
export function AvailabilityBadge({ availability, explained = false }: { availability: Availability; explained?: boolean }) {
  if (availability === "active") return null;
  return (
    <span className="badge held" data-testid="availability">
      <Icon name={availability === "blocked" ? "stopped" : "paused"} /> {explained ? <Term of="drain, block">{WORDS[availability]}</Term> : WORDS[availability]}
    </span>
  );
}
