import type { JobState, NodeState } from "../api/types";
import { Icon } from "./Icon";

const WORDS: Record<JobState | NodeState, string> = {
  waiting: "Waiting",
  running: "Running",
  paused: "Paused",
  evaluating: "Evaluating",
  done: "Done",
  stopped: "Stopped",
  failed: "Failed",
  training: "Training",
  idle: "Idle",
  stale: "Stale",
  gone: "Gone",
};

/** A state as icon and word, coloured besides. */
export function State({ state, testId }: { state: JobState | NodeState; testId?: string }) {
  return (
    <span className={`state ${state}`} data-testid={testId} data-state={state}>
      <Icon name={state in WORDS ? state : "warning"} />
      {WORDS[state] ?? state}
    </span>
  );
}
