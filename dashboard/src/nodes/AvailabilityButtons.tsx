import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { setAvailability, type Availability } from "../api/commands";
import { sessionQuery } from "../api/queries";
import { Icon, type IconName } from "../ui/Icon";
import { Problem } from "../ui/Problem";
import { nodeQuery } from "./queries";

interface Step {
  to: Availability;
  text: string;
  icon: IconName;
  title: string;
}

const ACTIVATE: Step = { to: "active", text: "Activate", icon: "running", title: "Let jobs ask this node again" };
const DRAIN: Step = { to: "drained", text: "Drain", icon: "paused", title: "It finishes what it does and is asked nothing new" };
const BLOCK: Step = { to: "blocked", text: "Block", icon: "stopped", title: "Withdraw its orders and ask it nothing new" };

const STEPS: Record<Availability, Step[]> = {
  active: [DRAIN, BLOCK],
  drained: [ACTIVATE, BLOCK],
  blocked: [ACTIVATE],
};

/** What an operator may do to a node; nobody else sees the buttons. Each can be undone, so none asks back. */
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
      {change.error && <Problem error={change.error} />}
    </div>
  );
}

const WORDS: Record<Availability, string> = { active: "", drained: "Drained", blocked: "Blocked" };

/** Says that a node is asked nothing; nothing where it is active. */
export function AvailabilityBadge({ availability }: { availability: Availability }) {
  if (availability === "active") return null;
  return (
    <span className="badge held" data-testid="availability">
      <Icon name={availability === "blocked" ? "stopped" : "paused"} /> {WORDS[availability]}
    </span>
  );
}
