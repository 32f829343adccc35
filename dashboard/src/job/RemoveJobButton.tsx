import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { removeJob } from "../api/commands";
import { keys } from "../api/queries";
import type { Job } from "../api/types";
import { visible } from "../format/text";
import { navigate } from "../router";
import { Dialog } from "../ui/Dialog";
import { Icon } from "../ui/Icon";
import { Problem } from "../ui/Problem";

/** A button that removes a job that has ended, once that is confirmed. */
export function RemoveJob({ job }: { job: Job }) {
  const [isAsked, setAsked] = useState(false);
  return (
    <>
      <button type="button" className="button" data-testid="remove" onClick={() => setAsked(true)}>
        <Icon name="stopped" /> Remove
      </button>
      {isAsked && <Ask job={job} onClose={() => setAsked(false)} />}
    </>
  );
}

function Ask({ job, onClose }: { job: Job; onClose: () => void }) {
  const client = useQueryClient();
  const removed = useMutation({
    mutationFn: () => removeJob(job.name),
    onSuccess: () => {
      client.setQueryData<Job[]>(keys.jobs, (jobs) => jobs?.filter(({ name }) => name !== job.name));
      navigate("/");
      client.removeQueries({ queryKey: keys.job(job.name) });
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    removed.mutate();
  };
  return (
    <Dialog title={`Remove ${visible(job.title || job.name)}?`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <p>Its models, metrics, reports, events and logs are deleted for good. Save the run and export its model first if you need them.</p>
        {removed.error && <Problem error={removed.error} />}
        <div className="dialog-actions">
          <button type="button" className="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" className="button danger" disabled={removed.isPending} data-testid="confirm">
            Remove
          </button>
        </div>
      </form>
    </Dialog>
  );
}
