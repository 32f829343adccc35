import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useState, type FormEvent, type ReactNode } from "react";
import { keys } from "../api/queries";
import type { Job } from "../api/types";
import { Dialog } from "./Dialog";
import { Problem } from "./Problem";

interface Props {
  job: Job;
  title: string;
  /** What the button says. */
  verb: string;
  /** Whether what will happen ends something. */
  danger?: boolean;
  /** False: there is nothing to confirm yet. */
  possible?: boolean;
  act: (why: string) => Promise<Job>;
  onClose: () => void;
  /** What will happen, and what there is to choose. */
  children: ReactNode;
}

/** Before anything happens to a job: what it will be, a reason, and a way back. */
export function Confirm({ job, title, verb, danger = false, possible = true, act, onClose, children }: Props) {
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
            className={danger ? "button danger" : "button primary"}
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
