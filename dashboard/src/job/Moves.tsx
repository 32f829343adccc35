import { useQuery } from "@tanstack/react-query";
import { movesQuery } from "../api/queries";
import type { Job } from "../api/types";
import { visible } from "../format/text";
import { duration } from "../format/time";
import { hasEnded } from "../jobs/order";
import { useConnection } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { Icon } from "../ui/Icon";
import { mayGossip, MODE_WORDS, origin, stays } from "./moves";
import { Moment } from "../ui/Moment";
import "../styles/moves.css";

/** Who leads the job, beside its state; nothing where that is never a question. */
export function ModeMark({ job }: { job: Job }) {
  if (!mayGossip(job) || hasEnded(job)) return null;
  return (
    <span className="mode" data-testid="job-mode" data-mode={job.mode}>
      <Icon name="mode" />
      {MODE_WORDS[job.mode]}
    </span>
  );
}

/** That the coordinator had lost its disk, and what it does not know since; nothing for any other job. */
export function Origin({ job }: { job: Job }) {
  const found = origin(job);
  if (found === null) return null;
  return (
    <p className="origin" data-testid="job-origin">
      <Icon name="mode" />
      <span>
        <bdi>{visible(found)}</bdi>; earlier versions, measurements and byte counts are not known here
      </span>
    </p>
  );
}

/** Who has led the job so far, as a strip of its time and in words. */
export function Moves({ job }: { job: Job }) {
  const { data: moves } = useQuery({ ...movesQuery(job.name), enabled: job.mode_since !== null });
  const browser = useNow();
  const { skew } = useConnection();
  const now = browser + skew;
  if (moves === undefined || moves.length === 0) return null;
  const found = stays(job, moves);
  return (
    <section className="moves panel" data-testid="moves" aria-label="Who has led the job">
      <h2>Who has led the job</h2>
      <div className="moves-strip" aria-hidden="true">
        {found.map((stay) => (
          <span
            key={`${stay.from} ${stay.mode}`}
            data-mode={stay.mode}
            style={{ flexGrow: Math.max(1, (stay.to ?? now) - stay.from) }}
          />
        ))}
      </div>
      <ol tabIndex={0}>
        {found.toReversed().map((stay) => (
          <li key={`${stay.from} ${stay.mode}`} data-mode={stay.mode}>
            <Moment at={stay.from} />
            <span className="mode" data-mode={stay.mode}>
              <Icon name="mode" />
              {MODE_WORDS[stay.mode]}
            </span>
            <span className="faint">{duration(Math.max(0, Math.floor(((stay.to ?? now) - stay.from) / 1000)))}</span>
            {stay.why && <bdi>{visible(stay.why)}</bdi>}
          </li>
        ))}
      </ol>
    </section>
  );
}
