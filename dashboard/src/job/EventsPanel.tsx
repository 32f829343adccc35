import { memo, useMemo, useState } from "react";
import type { JobEvent, JobEventKind } from "../api/types";
import { formatCount, plural } from "../format/number";
import { escapeHidden } from "../format/text";
import { Link, nodePath, useChoiceParam } from "../router/router";
import { Icon } from "../ui/Icon";
import { QueryStatus, type QueryState } from "../ui/QueryStatus";
import { Timestamp } from "../ui/Timestamp";
import { EVENT_FILTERS, groupEvents, type EventFilter, type EventGroup } from "./groupEvents";

const FILTER_LABELS: Record<EventFilter, string> = {
  all: "All",
  decision: "Decisions",
  node: "Nodes",
  refusal: "Refusals",
  warning: "Warnings",
  state: "State",
  mode: "Mode",
};
const PAGE = 100;

/** Panel of a job's events: the latest warnings first, then all, newest first. */
export function EventsPanel({ events, query }: { events: JobEvent[]; query: QueryState }) {
  const [filter, setFilter] = useChoiceParam<EventFilter>("events", EVENT_FILTERS);
  const [shown, setShown] = useState(PAGE);
  const counts = useMemo(() => countKinds(events), [events]);
  const { urgent, groups } = useMemo(() => groupEvents(events, filter), [events, filter]);
  return (
    <section className="events panel" data-testid="events" aria-label="Events">
      <header className="events-head">
        <h2>Events</h2>
        <div className="chips" role="radiogroup" aria-label="Filter">
          {EVENT_FILTERS.filter((option) => option === "all" || option === filter || counts[option] > 0).map((option) => (
            <label key={option} data-testid={`events-${option}`}>
              <input
                type="radio"
                name="events"
                className="visually-hidden"
                checked={filter === option}
                onChange={() => setFilter(option)}
              />
              <span>
                {FILTER_LABELS[option]}
                {option !== "all" && <small> {formatCount(counts[option])}</small>}
              </span>
            </label>
          ))}
        </div>
      </header>
      {query.data === undefined ? (
        <QueryStatus query={query} lines={5} />
      ) : urgent.length + groups.length === 0 ? (
        <p className="events-none">{events.length === 0 ? "No events yet" : "No matching events"}</p>
      ) : (
        <div className="events-scroll" tabIndex={0} role="region" aria-label="Events, newest first">
          {urgent.length > 0 && (
            <ol className="events-urgent" data-testid="events-urgent" aria-label="Latest warnings and refusals">
              {urgent.map((event) => (
                <EventRow key={event.id} event={event} />
              ))}
            </ol>
          )}
          <ol>
            {groups.slice(0, shown).map((group) => (
              <GroupRows key={group.at(-1)?.id} group={group} />
            ))}
          </ol>
          <OlderButton left={groups.length - shown} onClick={() => setShown(shown + PAGE)} />
        </div>
      )}
    </section>
  );
}

function OlderButton({ left, onClick }: { left: number; onClick: () => void }) {
  if (left <= 0) return null;
  return (
    <button type="button" className="quiet-button" onClick={onClick}>
      Show {formatCount(Math.min(PAGE, left))} older
    </button>
  );
}

/**
 * The newest event of a group, and the earlier ones while it is open: a long run has thousands. Give it the oldest
 * event's id as its key, because a group stays open when a newer event joins it.
 */
export function GroupRows({ group: [newest, ...earlier] }: { group: EventGroup }) {
  const [isOpen, setOpen] = useState(false);
  const [shown, setShown] = useState(PAGE);
  return (
    <>
      <EventRow event={newest} />
      {earlier.length > 0 && (
        <li className="events-group">
          <details onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
            <summary>{plural(earlier.length, "earlier decision")}</summary>
            {isOpen && (
              <>
                <ol>
                  {earlier.slice(0, shown).map((event) => (
                    <EventRow key={event.id} event={event} />
                  ))}
                </ol>
                <OlderButton left={earlier.length - shown} onClick={() => setShown(shown + PAGE)} />
              </>
            )}
          </details>
        </li>
      )}
    </>
  );
}

function countKinds(events: JobEvent[]): Record<JobEventKind, number> {
  const counts: Record<JobEventKind, number> = { decision: 0, mode: 0, node: 0, refusal: 0, state: 0, warning: 0 };
  for (const event of events) counts[event.kind] += 1;
  return counts;
}

const EventRow = memo(function EventRow({ event }: { event: JobEvent }) {
  return (
    <li className="event" data-kind={event.kind}>
      <span className="event-icon" title={event.kind}>
        <Icon name={event.kind} />
        <span className="visually-hidden">{event.kind}:</span>
      </span>
      <p>
        {event.node !== null && !event.text.includes(event.node) && (
          <>
            <Link href={nodePath(event.node)}>
              <bdi className="event-node">{escapeHidden(event.node)}</bdi>
            </Link>{" "}
          </>
        )}
        <bdi>{escapeHidden(event.text)}</bdi>
      </p>
      <span className="event-when">
        <Timestamp at={event.at} />
        <span title={`version ${event.version}`}>v{event.version}</span>
      </span>
    </li>
  );
});
