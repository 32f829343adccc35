import { useId, useState } from "react";
import { promote, withdraw } from "../api/commands";
import type { Job } from "../api/types";
import { Confirm } from "../ui/Confirm";
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
    <Confirm
      job={job}
      title={`Promote version ${version}?`}
      verb="Promote"
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
      <p data-testid="effect">{promotionEffect(job, label, version)}</p>
    </Confirm>
  );
}

interface WithdrawProps {
  job: Job;
  label: string;
  onClose: () => void;
}

export function WithdrawDialog({ job, label, onClose }: WithdrawProps) {
  return (
    <Confirm
      job={job}
      title={`Withdraw ${label}?`}
      verb="Withdraw"
      act={(why) => withdraw(job.name, label, why)}
      onClose={onClose}
    >
      <p data-testid="effect">{withdrawalEffect(job, label)}</p>
    </Confirm>
  );
}
