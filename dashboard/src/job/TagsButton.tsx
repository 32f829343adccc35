import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useState, type FormEvent } from "react";
import { setTags } from "../api/commands";
import { queryKeys } from "../api/queryKeys";
import type { Job } from "../api/types";
import { escapeHidden } from "../format/text";
import { Dialog } from "../ui/Dialog";
import { Icon } from "../ui/Icon";
import { ErrorMessage } from "../ui/ErrorMessage";

/** Button with a dialog to edit a job's tags. */
export function TagsButton({ job }: { job: Job }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button type="button" className="button" data-testid="edit-tags" onClick={() => setOpen(true)}>
        <Icon name="tag" /> Tags
      </button>
      {open && <TagsDialog job={job} onClose={() => setOpen(false)} />}
    </>
  );
}

function TagsDialog({ job, onClose }: { job: Job; onClose: () => void }) {
  const client = useQueryClient();
  const [text, setText] = useState(job.tags.join(", "));
  const field = useId();
  const act = useMutation({
    mutationFn: () => setTags(job.name, tagsOf(text)),
    onSuccess: (after) => {
      client.setQueryData(queryKeys.job(job.name), after);
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    act.mutate();
  };
  return (
    <Dialog title={`Tags of ${escapeHidden(job.title || job.name)}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label htmlFor={field}>
          Tags <span className="faint">(separated by commas; visible to everyone)</span>
        </label>
        <input id={field} type="text" autoComplete="off" value={text} onChange={(event) => setText(event.target.value)} />
        {act.error && <ErrorMessage error={act.error} />}
        <div className="dialog-actions">
          <button type="button" className="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" className="button primary" disabled={act.isPending} data-testid="confirm">
            Save
          </button>
        </div>
      </form>
    </Dialog>
  );
}

const tagsOf = (text: string): string[] =>
  text
    .split(",")
    .map((tag) => tag.trim())
    .filter((tag) => tag !== "");
