import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { command, type Command } from "../api/commands";
import { sessionQuery } from "../api/queries";
import type { Job } from "../api/types";
import { visible } from "../format/text";
import { hasEnded } from "../jobs/order";
import { Link, newJobPath } from "../router";
import { Confirm } from "../ui/Confirm";
import { Icon } from "../ui/Icon";
import { effects, isHeld, type Action } from "./effects";
import { MovePreview } from "./MovePreview";
import { mayGossip } from "./moves";
import { RemoveJob } from "./RemoveJob";
import { EditTags } from "./Tags";

/** What an operator may do to the job; nobody else sees those buttons. */
export function Controls({ job }: { job: Job }) {
  const { data: role } = useQuery(sessionQuery);
  const [asked, setAsked] = useState<Action | null>(null);
  if (role !== "operator") {
    return (
      <div className="controls">
        <SaveRun job={job} />
      </div>
    );
  }
  if (hasEnded(job)) return <Keeping job={job} />;
  const paused = job.state === "paused";
  return (
    <div className="controls">
      <button
        type="button"
        className="button"
        data-testid={paused ? "resume" : "pause"}
        onClick={() => setAsked(paused ? "resume" : "pause")}
      >
        <Icon name={paused ? "running" : "paused"} /> {isHeld(job) ? "Start" : paused ? "Resume" : "Pause"}
      </button>
      <SwitchButton job={job} onAsk={setAsked} />
      <button type="button" className="button" data-testid="stop" onClick={() => setAsked("stop")}>
        <Icon name="stopped" /> Stop or abort
      </button>
      <CloneLink job={job} />
      <EditTags job={job} />
      <SaveRun job={job} />
      {asked && <ActionDialog job={job} action={asked} onClose={() => setAsked(null)} />}
    </div>
  );
}

/** What may be done to a job that is over. */
function Keeping({ job }: { job: Job }) {
  return (
    <div className="controls">
      <CloneLink job={job} />
      <EditTags job={job} />
      <SaveRun job={job} />
      <RemoveJob job={job} />
    </div>
  );
}

/** All that is known of the run, as a file; for everybody who may read. */
function SaveRun({ job }: { job: Job }) {
  const href = `/api/v1/jobs/${encodeURIComponent(job.name)}/export`;
  return (
    <a className="button" href={href} download={`${job.name}.jsonl`} data-testid="save-run" title="JSON Lines: versions, bytes, reports, notes, failures">
      <Icon name="save" /> Save the run
    </a>
  );
}

/** To a new job that begins with what this one was; nothing begins before it is looked at. */
function CloneLink({ job }: { job: Job }) {
  return (
    <Link href={newJobPath(job.name)} className="button" data-testid="clone">
      <Icon name="copy" /> Clone with changes
    </Link>
  );
}

/** There or back, for a job that may go; while it comes back there is nothing to decide. */
function SwitchButton({ job, onAsk }: { job: Job; onAsk: (action: Action) => void }) {
  if (!mayGossip(job) || job.mode === "returning" || job.state !== "running" || job.model === null) return null;
  const to = job.mode === "away" ? "server" : "gossip";
  return (
    <button type="button" className="button" data-testid={`switch-${to}`} onClick={() => onAsk(to)}>
      <Icon name="mode" /> {to === "server" ? "Back to the server" : "Switch to gossip"}
    </button>
  );
}

function ActionDialog({ job, action, onClose }: { job: Job; action: Action; onClose: () => void }) {
  const options = effects(action, job);
  const [chosen, setChosen] = useState<Command>(options[0].command);
  const effect = options.find((option) => option.command === chosen) ?? options[0];
  return (
    <Confirm
      job={job}
      title={`${effect.verb} ${visible(job.title || job.name)}?`}
      verb={effect.verb}
      danger={action === "stop"}
      act={(why) => command(job.name, chosen, why)}
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
      {action === "gossip" || action === "server" ? <MovePreview job={job} to={action} /> : <p>{effect.text}</p>}
    </Confirm>
  );
}
