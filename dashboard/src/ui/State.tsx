import type { FleetNode, JobState, NodeState } from "../api/types";
import { Icon } from "./Icon";

type Any = JobState | NodeState | FleetNode["state"];

const WORDS: Record<Any, string> = {
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

/** A state as icon and word, coloured besides. */
export function State({ state, testId }: { state: Any; testId?: string }) {
  return (
    <span className={`state ${state}`} data-testid={testId} data-state={state}>
      <Icon name={state in WORDS ? state : "warning"} />
      {WORDS[state] ?? state}
    </span>
  );
}
