import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useId, useState, type FormEvent } from "react";
import { command, type Command } from "../api/commands";
import { keys, sessionQuery } from "../api/queries";
import type { Job } from "../api/types";
import { visible } from "../format/text";
import { hasEnded } from "../jobs/order";
import { Link, newJobPath } from "../router";
import { Dialog } from "../ui/Dialog";
import { Icon } from "../ui/Icon";
import { Problem } from "../ui/Problem";
import { effects, isHeld, type Action } from "./effects";
import { MovePreview } from "./MovePreview";
import { mayGossip } from "./moves";
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
  const client = useQueryClient();
  const options = effects(action, job);
  const [chosen, setChosen] = useState<Command>(options[0].command);
  const [why, setWhy] = useState("");
  const field = useId();
  const act = useMutation({
    mutationFn: () => command(job.name, chosen, why.trim()),
    onSuccess: (after) => {
      client.setQueryData(keys.job(job.name), after);
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    act.mutate();
  };
  const effect = options.find((option) => option.command === chosen) ?? options[0];
  return (
    <Dialog title={`${effect.verb} ${visible(job.title || job.name)}?`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        {options.length > 1 && (
          <fieldset className="choices">
            <legend className="visually-hidden">When</legend>
            {options.map((option) => (
              <label key={option.command}>
                <input
                  type="radio"
                  name="when"
                  checked={chosen === option.command}
                  onChange={() => setChosen(option.command)}
                />
                {option.when}
              </label>
            ))}
          </fieldset>
        )}
        {action === "gossip" || action === "server" ? <MovePreview job={job} to={action} /> : <p>{effect.text}</p>}
        <label htmlFor={field}>
          Reason <span className="faint">(kept with the decisions)</span>
        </label>
        <input
          id={field}
          name="why"
          type="text"
          maxLength={200}
          autoComplete="off"
          value={why}
          onChange={(event) => setWhy(event.target.value)}
        />
        {act.error && <Problem error={act.error} />}
        <div className="dialog-actions">
          <button type="button" className="button" onClick={onClose}>
            Cancel
          </button>
          <button
            type="submit"
            className={action === "stop" ? "button danger" : "button primary"}
            disabled={act.isPending}
            data-testid="confirm"
          >
            {effect.verb}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
