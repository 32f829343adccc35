import type { FleetNode, JobState, NodeState } from "../api/types";
import { Icon } from "./Icon";

type Any = JobState | NodeState | FleetNode["state"];

const LABELS: Record<Any, string> = {
  waiting: "Waiting",
  running: "Running",
  paused: "Paused",
  evaluating: "Evaluating",
  done: "Done",
  stopped: "Stopped",
  failed: "Failed",
  training: "Training",
  idle: "Idle",
  online: "Online",
  stale: "Stale",
  gone: "Gone",
};

/** A state as icon and word. */
export function StateBadge({ state, idle = false, testId }: { state: Any; idle?: boolean; testId?: string }) {
  // A running job for which no node works is waiting for nodes.
  const stands = idle && state === "running";
  const look = stands ? "stale" : state;
  return (
    <span className={`state ${look}`} data-testid={testId} data-state={state} data-idle={stands || undefined}>
      <Icon name={look in LABELS ? look : "warning"} />
      {stands ? "Waiting for nodes" : (LABELS[state] ?? state)}
    </span>
  );
}
