import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useState, type FormEvent, type ReactNode } from "react";
import { queryKeys } from "../api/queryKeys";
import type { Job } from "../api/types";
import { Dialog } from "./Dialog";
import { ErrorMessage } from "./ErrorMessage";

interface Props {
  job: Job;
  title: string;
  /** Label of the button. */
  verb: string;
  /** True if the action ends something. */
  danger?: boolean;
  /** False if there is nothing to confirm. */
  possible?: boolean;
  act: (why: string) => Promise<Job>;
  onClose: () => void;
  /** Description of the effect, and its options. */
  children: ReactNode;
}

/** Dialog that confirms an action on a job, with a reason. */
export function ConfirmDialog({ job, title, verb, danger = false, possible = true, act, onClose, children }: Props) {
  const client = useQueryClient();
  const [why, setWhy] = useState("");
  const field = useId();
  const asked = useMutation({
    mutationFn: () => act(why.trim()),
    onSuccess: (after) => {
      client.setQueryData(queryKeys.job(job.name), after);
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
          Reason <span className="faint">(stored with the events)</span>
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
        {asked.error && <ErrorMessage error={asked.error} />}
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
