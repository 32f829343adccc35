import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { sendCommand, type Command } from "../api/commands";
import type { Job } from "../api/types";
import { hasEnded } from "../domain/job";
import { allowsGossip } from "../domain/modes";
import { escapeHidden } from "../format/text";
import { sessionQuery } from "../queries/session";
import { Link, newJobPath } from "../router/router";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { Icon } from "../ui/Icon";
import { actionEffects, isHeld, type Action } from "./actionEffects";
import { RemoveJobButton } from "./RemoveJobButton";
import { SwitchPreview } from "./SwitchPreview";
import { TagsButton } from "./TagsButton";

/** Buttons of a job; viewers only get the export. */
export function JobActions({ job }: { job: Job }) {
  const { data: role } = useQuery(sessionQuery);
  const [action, setAction] = useState<Action | null>(null);
  if (role !== "operator") {
    return (
      <div className="controls">
        <ExportLink job={job} />
      </div>
    );
  }
  if (hasEnded(job)) return <EndedJobActions job={job} />;
  const isPaused = job.state === "paused";
  return (
    <div className="controls">
      <button
        type="button"
        className="button"
        data-testid={isPaused ? "resume" : "pause"}
        onClick={() => setAction(isPaused ? "resume" : "pause")}
      >
        <Icon name={isPaused ? "running" : "paused"} /> {isHeld(job) ? "Start" : isPaused ? "Resume" : "Pause"}
      </button>
      <SwitchButton job={job} onClick={setAction} />
      <button type="button" className="button" data-testid="stop" onClick={() => setAction("stop")}>
        <Icon name="stopped" /> Stop
      </button>
      <CloneLink job={job} />
      <TagsButton job={job} />
      <ExportLink job={job} />
      {action && <ActionDialog job={job} action={action} onClose={() => setAction(null)} />}
    </div>
  );
}

function EndedJobActions({ job }: { job: Job }) {
  return (
    <div className="controls">
      <CloneLink job={job} />
      <TagsButton job={job} />
      <ExportLink job={job} />
      <RemoveJobButton job={job} />
    </div>
  );
}

/** Link to all data of the run as a file. */
function ExportLink({ job }: { job: Job }) {
  const href = `/api/v1/jobs/${encodeURIComponent(job.name)}/export`;
  return (
    <a
      className="button"
      href={href}
      download={`${job.name}.jsonl`}
      data-testid="export-run"
      title="JSON Lines: versions, bytes, reports, events, failures"
    >
      <Icon name="save" /> Export
    </a>
  );
}

/** Link to the form for a new job, filled in with this one's configuration. */
function CloneLink({ job }: { job: Job }) {
  return (
    <Link href={newJobPath(job.name)} className="button" data-testid="clone">
      <Icon name="copy" /> Clone
    </Link>
  );
}

/** Button that switches the mode of a running job that allows gossip; hidden while the job returns to the server. */
function SwitchButton({ job, onClick }: { job: Job; onClick: (action: Action) => void }) {
  if (!allowsGossip(job) || job.mode === "returning" || job.state !== "running" || job.model === null) return null;
  const to = job.mode === "gossip" ? "server" : "gossip";
  return (
    <button type="button" className="button" data-testid={`switch-${to}`} onClick={() => onClick(to)}>
      <Icon name="mode" /> Switch to {to}
    </button>
  );
}

function ActionDialog({ job, action, onClose }: { job: Job; action: Action; onClose: () => void }) {
  const options = actionEffects(action, job);
  const [chosen, setChosen] = useState<Command>(options[0].command);
  const effect = options.find((option) => option.command === chosen) ?? options[0];
  return (
    <ConfirmDialog
      job={job}
      title={`${effect.verb} ${escapeHidden(job.title || job.name)}?`}
      verb={effect.verb}
      danger={action === "stop"}
      act={(reason) => sendCommand(job.name, chosen, reason)}
      onClose={onClose}
    >
      {options.length > 1 && (
        <fieldset className="choices">
          <legend className="visually-hidden">When</legend>
          {options.map((option) => (
            <label key={option.command}>
              <input type="radio" name="when" checked={chosen === option.command} onChange={() => setChosen(option.command)} />
              {option.when}
            </label>
          ))}
        </fieldset>
      )}
      {action === "gossip" || action === "server" ? <SwitchPreview job={job} to={action} /> : <p>{effect.text}</p>}
    </ConfirmDialog>
  );
}
