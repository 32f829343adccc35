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
export function State({ state, idle = false, testId }: { state: Any; idle?: boolean; testId?: string }) {
  // A job that runs, though no node works for it, only waits.
  const stands = idle && state === "running";
  const look = stands ? "stale" : state;
  return (
    <span className={`state ${look}`} data-testid={testId} data-state={state} data-idle={stands || undefined}>
      <Icon name={look in WORDS ? look : "warning"} />
      {stands ? "Waiting for nodes" : (WORDS[state] ?? state)}
    </span>
  );
}
