import { useMutation, useQueryClient, type Query } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { flushSync } from "react-dom";
import { removeJob } from "../api/commands";
import { queryKeys } from "../api/queryKeys";
import type { Job } from "../api/types";
import { escapeHidden } from "../format/text";
import { navigate } from "../router/router";
import { Dialog } from "../ui/Dialog";
import { Icon } from "../ui/Icon";
import { ErrorMessage } from "../ui/ErrorMessage";

/** Button that removes an ended job after confirmation. */
export function RemoveJobButton({ job }: { job: Job }) {
  const [isAsked, setAsked] = useState(false);
  return (
    <>
      <button type="button" className="button" data-testid="remove" onClick={() => setAsked(true)}>
        <Icon name="stopped" /> Remove
      </button>
      {isAsked && <RemoveDialog job={job} onClose={() => setAsked(false)} />}
    </>
  );
}

function RemoveDialog({ job, onClose }: { job: Job; onClose: () => void }) {
  const client = useQueryClient();
  const predicate = ({ queryKey }: Query) => queryKey[1] === job.name;
  const removed = useMutation({
    mutationFn: async () => {
      // A fetch under way would report the job as missing.
      const fetching = client.getQueryCache().findAll({ predicate, fetchStatus: "fetching" });
      await Promise.allSettled(fetching.map(({ promise }) => promise));
      await removeJob(job.name);
    },
    onSuccess: () => {
      client.setQueryData<Job[]>(queryKeys.jobs, (jobs) => jobs?.filter(({ name }) => name !== job.name));
      // The job's page must be gone first: it would fetch its answers again.
      flushSync(() => navigate("/"));
      client.removeQueries({ predicate });
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    removed.mutate();
  };
  return (
    <Dialog title={`Remove ${escapeHidden(job.title || job.name)}?`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <p>This permanently deletes the job's models, metrics, reports, events and logs. Export the run and download its model first if you need them.</p>
        {removed.error && <ErrorMessage error={removed.error} />}
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
