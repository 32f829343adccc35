import { useQuery } from "@tanstack/react-query";
import type { Job } from "../api/types";
import { modePeriods, restoredFrom } from "../domain/modes";
import { escapeHidden } from "../format/text";
import { formatDuration } from "../format/time";
import { useConnection } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { modeEventsQuery } from "../queries/jobs";
import { Icon } from "../ui/Icon";
import { ModeBadge } from "../ui/ModeBadge";
import { Timestamp } from "../ui/Timestamp";
import { Term } from "../ui/Term";
import "../styles/modes.css";

/** Notice of a job that was restored after a loss of the coordinator's disk. */
export function RestoreNotice({ job }: { job: Job }) {
  const text = restoredFrom(job);
  if (text === null) return null;
  return (
    <p className="restore-notice" data-testid="job-restored">
      <Icon name="mode" />
      <span>
        <bdi>{escapeHidden(text)}</bdi>; earlier versions, metrics and byte counts are lost
      </span>
    </p>
  );
}

/** The job's modes so far: a bar, and a list with the newest first. */
export function ModeHistory({ job }: { job: Job }) {
  const { data: events } = useQuery({ ...modeEventsQuery(job.name), enabled: job.mode_since !== null });
  const browserNow = useNow();
  const { skew } = useConnection();
  const now = browserNow + skew;
  if (events === undefined || events.length === 0) return null;
  const periods = modePeriods(job, events);
  return (
    <section className="mode-history panel" data-testid="mode-history" aria-label="Mode history">
      <h2>
        <Term of="mode">Mode</Term> history
      </h2>
      <div className="mode-bar" aria-hidden="true">
        {periods.map(({ from, to, mode }) => (
          <span key={`${from} ${mode}`} data-mode={mode} style={{ flexGrow: Math.max(1, (to ?? now) - from) }} />
        ))}
      </div>
      <ol tabIndex={0}>
        {periods.toReversed().map(({ from, to, mode, why }) => (
          <li key={`${from} ${mode}`} data-mode={mode}>
            <Timestamp at={from} />
            <ModeBadge mode={mode} />
            <span className="faint">{formatDuration(Math.max(0, Math.floor(((to ?? now) - from) / 1000)))}</span>
            {why && <bdi>{escapeHidden(why)}</bdi>}
          </li>
        ))}
      </ol>
    </section>
  );
}
