import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useState, type FormEvent, type ReactNode } from "react";
import { promote, withdraw } from "../api/commands";
import { keys } from "../api/queries";
import type { Job } from "../api/types";
import { Dialog } from "../ui/Dialog";
import { Problem } from "../ui/Problem";
import { LABEL, promotionEffect, USUAL, withdrawalEffect } from "./labels";

interface PromoteProps {
  job: Job;
  version: number;
  onClose: () => void;
}

export function PromoteDialog({ job, version, onClose }: PromoteProps) {
  const [label, setLabel] = useState(USUAL);
  const [field, known] = [useId(), useId()];
  return (
    <Ask
      job={job}
      title={`Promote version ${version}?`}
      verb="Promote"
      effect={promotionEffect(job, label, version)}
      possible={LABEL.test(label) && job.labels[label] !== version}
      act={(why) => promote(job.name, label, version, why)}
      onClose={onClose}
    >
      <label htmlFor={field}>Label</label>
      <input
        id={field}
        name="label"
        type="text"
        list={known}
        maxLength={40}
        autoComplete="off"
        value={label}
        onChange={(event) => setLabel(event.target.value.trim())}
      />
      <datalist id={known}>
        {[...new Set([USUAL, ...Object.keys(job.labels)])].map((one) => (
          <option key={one} value={one} />
        ))}
      </datalist>
    </Ask>
  );
}

interface WithdrawProps {
  job: Job;
  label: string;
  onClose: () => void;
}

export function WithdrawDialog({ job, label, onClose }: WithdrawProps) {
  return (
    <Ask
      job={job}
      title={`Withdraw ${label}?`}
      verb="Withdraw"
      effect={withdrawalEffect(job, label)}
      possible
      act={(why) => withdraw(job.name, label, why)}
      onClose={onClose}
    />
  );
}

interface AskProps {
  job: Job;
  title: string;
  verb: string;
  effect: string;
  possible: boolean;
  act: (why: string) => Promise<Job>;
  onClose: () => void;
  children?: ReactNode;
}

/** What will happen, a reason, and a way back. */
function Ask({ job, title, verb, effect, possible, act, onClose, children }: AskProps) {
  const client = useQueryClient();
  const [why, setWhy] = useState("");
  const field = useId();
  const asked = useMutation({
    mutationFn: () => act(why.trim()),
    onSuccess: (after) => {
      client.setQueryData(keys.job(job.name), after);
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (possible) asked.mutate();
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        {children}
        <p data-testid="effect">{effect}</p>
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
        {asked.error && <Problem error={asked.error} />}
        <div className="dialog-actions">
          <button type="button" className="button" onClick={onClose}>
            Cancel
          </button>
          <button
            type="submit"
            className="button primary"
            disabled={asked.isPending || !possible}
            data-testid="confirm"
          >
            {verb}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
