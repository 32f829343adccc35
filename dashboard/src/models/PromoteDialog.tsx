import { useId, useState } from "react";
import { promoteVersion, removeLabel } from "../api/commands";
import type { Job } from "../api/types";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { Term } from "../ui/Term";
import { LABEL_PATTERN, promotionEffect, DEFAULT_LABEL, removalEffect } from "./labels";

interface PromoteProps {
  job: Job;
  version: number;
  onClose: () => void;
}

export function PromoteDialog({ job, version, onClose }: PromoteProps) {
  const [label, setLabel] = useState(DEFAULT_LABEL);
  const [field, known] = [useId(), useId()];
  return (
    <ConfirmDialog
      job={job}
      title={`Promote version ${version}?`}
      verb="Promote"
      possible={LABEL_PATTERN.test(label) && job.labels[label] !== version}
      act={(why) => promoteVersion(job.name, label, version, why)}
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
        {[...new Set([DEFAULT_LABEL, ...Object.keys(job.labels)])].map((one) => (
          <option key={one} value={one} />
        ))}
      </datalist>
      <p className="hint">
        A label names one <Term of="model version">model version</Term>.
      </p>
      <p data-testid="effect">{promotionEffect(job, label, version)}</p>
    </ConfirmDialog>
  );
}

interface WithdrawProps {
  job: Job;
  label: string;
  onClose: () => void;
}

export function RemoveLabelDialog({ job, label, onClose }: WithdrawProps) {
  return (
    <ConfirmDialog
      job={job}
      title={`Remove label ${label}?`}
      verb="Remove"
      act={(why) => removeLabel(job.name, label, why)}
      onClose={onClose}
    >
      <p data-testid="effect">{removalEffect(job, label)}</p>
    </ConfirmDialog>
  );
}
