"""The journal of a job: its events, its snapshots, and the rows that people read.

`append` comes first: an event is fed to the hub when it is committed, never before. `project_effects` writes the
effects of an event for people (versions, job events, metrics) and the snapshot; all its rows are keyed by the event, so
that a crash between the two is repaired by projecting again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, delete, func, select, update

from shoal.core.errors import InvalidPayload, message_of
from shoal.core.protocol.machine import Effect, HubEvent, JobEvent, Measured, ModelVersion, Save, Send, Wake
from shoal.core.protocol.message import Pause, Report
from shoal.wire import codec
from shoal_coordinator.models import version_history
from shoal_coordinator.storage.bulk_insert import BulkInsert
from shoal_coordinator.storage.crashpoints import crashpoint
from shoal_coordinator.storage.dialects import insert
from shoal_coordinator.storage.tables import journal, snapshots, updates, versions
from shoal_coordinator.telemetry import divergence_detector, failures, report_store
from shoal_coordinator.telemetry.event_bus import Item
from shoal_coordinator.telemetry.failures import Failure
from shoal_coordinator.telemetry.job_events import FeedRow, add_feed_item, insert_items, job_event
from shoal_coordinator.telemetry.report_store import Counted, JournaledReport

SNAPSHOTS_KEPT = 2

# Made once: SQLAlchemy finds a statement that it knows several times faster than it builds one.
_JOB: BindParameter[str] = bindparam("of_job")
_SEQ: BindParameter[int] = bindparam("of_seq")
_NUMBER: BindParameter[int] = bindparam("of_number")
_ADD_EVENTS = BulkInsert(insert(journal))
_ADD_UPDATES = BulkInsert(insert(updates))
_ADD_VERSION = insert(versions).on_conflict_do_nothing()
_ADD_SNAPSHOT = insert(snapshots).on_conflict_do_nothing()
_NEWEST = select(func.max(versions.c.number)).where(versions.c.job == _JOB).scalar_subquery().label("newest")
_METRICS = select(versions.c.metrics, _NEWEST).where(versions.c.job == _JOB, versions.c.number == _NUMBER)
_SET_METRICS = (
    update(versions)
    .where(versions.c.job == _JOB, versions.c.number == _NUMBER)
    .values({name: bindparam(f"new_{name}") for name in version_history.columns({}, complete=False)})
)
_SNAPSHOTS = select(snapshots.c.seq).where(snapshots.c.job == _JOB).order_by(snapshots.c.seq.desc())
_LAST_KEPT = _SNAPSHOTS.offset(SNAPSHOTS_KEPT - 1).limit(1).scalar_subquery()
_TRIM_SNAPSHOTS = delete(snapshots).where(snapshots.c.job == _JOB, snapshots.c.seq < _LAST_KEPT)
_OLDEST = select(func.min(snapshots.c.seq)).where(snapshots.c.job == _JOB).scalar_subquery()
_TRIM_UPDATES = delete(updates).where(updates.c.job == _JOB, updates.c.seq <= _SEQ)
_TRIM_EVENTS = delete(journal).where(journal.c.job == _JOB, journal.c.seq <= _OLDEST, ~journal.c.skipped)


@dataclass(frozen=True)
class JournalEntry:
    """An event in the journal. `now` is on the hub's clock, `at` on the wall's. `payload`: of a small report, which has
    no file."""

    seq: int
    now: float
    at: float
    event: HubEvent
    payload: bytes | None = None

    def inline(self) -> dict[str, bytes]:
        """Return the blob that came with the event, by its digest."""
        event = self.event
        named = event.blob if isinstance(event, Report) else None
        return {named.digest: self.payload} if named is not None and self.payload is not None else {}


@dataclass(frozen=True)
class AppliedEntry:
    """An applied event: its effects, the hub's state if a snapshot is due, the errors, and the report if it counted."""

    entry: JournalEntry
    effects: Sequence[Effect]
    state: dict[str, Any] | None
    failure: Failure | None = None
    report: Counted | None = None

    @property
    def versions(self) -> list[ModelVersion]:
        """Versions that closed with it."""
        return [
            effect.what for effect in self.effects if isinstance(effect, Save) and isinstance(effect.what, ModelVersion)
        ]

    @property
    def job_events(self) -> bool:
        """Return whether the event makes job events."""
        return any(not isinstance(effect, Send | Wake) for effect in self.effects)

    @property
    def changes_mode(self) -> bool:
        """Return whether the event changed the job's mode."""
        return any(isinstance(effect, JobEvent) and effect.kind == "mode" for effect in self.effects)


def append(connection: Connection, job: str, entries: Sequence[JournalEntry]) -> None:
    """Append events. They count from the commit on."""
    rows = [
        {"job": job, "seq": e.seq, "now": e.now, "at": e.at, "event": codec.to_json(e.event), "skipped": False}
        for e in entries
    ]
    _ADD_EVENTS.write(connection, rows)
    blobs = [{"job": job, "seq": e.seq, "body": e.payload} for e in entries if e.payload is not None]
    _ADD_UPDATES.write(connection, blobs)
    crashpoint("journal.append")


def begin_paused(connection: Connection, job: str) -> None:
    """Append a pause as the first event of a job, in the transaction that creates the job."""
    append(connection, job, [JournalEntry(1, 0.0, time.time(), Pause("it waits to be started"))])


def load(connection: Connection, job: str) -> tuple[dict[str, Any] | None, float, list[JournalEntry], int]:
    """Return (state, its time, later events, last sequence number), from which a hub is restored."""
    snapshot = connection.execute(
        select(snapshots).where(snapshots.c.job == job).order_by(snapshots.c.seq.desc()).limit(1)
    ).first()
    seq, now = (snapshot.seq, snapshot.now) if snapshot else (0, 0.0)
    later = (
        select(journal, updates.c.body)
        .outerjoin(updates, (updates.c.job == journal.c.job) & (updates.c.seq == journal.c.seq))
        .where(journal.c.job == job, journal.c.seq > seq)
        .order_by(journal.c.seq)
    )
    rows = connection.execute(later).all()
    entries = [entry for row in rows if not row.skipped and (entry := _entry(connection, row)) is not None]
    last = max([seq, *(row.seq for row in rows)])
    return (snapshot.state if snapshot else None), max([now, *(e.now for e in entries)]), entries, last


def _entry(connection: Connection, row: Row[Any]) -> JournalEntry | None:
    """Return the event of a row; an unreadable one (damaged, or of a later release) is set aside and recorded."""
    try:
        return JournalEntry(row.seq, row.now, row.at, codec.from_json(row.event), row.body)
    except (InvalidPayload, TypeError, ValueError) as error:
        text = f"event {row.seq} cannot be read and was set aside: {message_of(error)}"
        skip_event(connection, row.job, row.seq, job_event("warning", text))
        return None


def skip_event(connection: Connection, job: str, seq: int, why: dict[str, Any]) -> list[Item]:
    """Keep an event that breaks the hub each time, but do not feed it again; a job event has the reason."""
    connection.execute(update(journal).where(journal.c.job == job, journal.c.seq == seq).values(skipped=True))
    return add_feed_item(connection, job, "job_event", why)


def project_effects(connection: Connection, job: str, fed: Sequence[AppliedEntry]) -> list[Item]:
    """Write the effects of events; return the items to publish once they are committed."""
    rows: list[FeedRow] = []
    items: list[Item] = []
    newest = {e.number: e for one in fed for e in one.effects if isinstance(e, Measured)}  # each contains those before
    for one in fed:
        for part, effect in enumerate(one.effects):
            if not isinstance(effect, Measured) or effect is newest[effect.number]:
                rows += _project_effect(connection, job, one.entry, part, effect)
        if one.failure is not None:
            items += failures.store(connection, job, one.entry.at, one.failure)
        if one.state is not None:
            _snapshot(connection, job, one.entry, one.state)
    counted = [(one.report, one.entry) for one in fed if one.report is not None]
    report_store.store(
        connection, job, [JournaledReport(report, entry.seq, entry.now, entry.at) for report, entry in counted]
    )
    items = insert_items(connection, job, rows) + items
    crashpoint("journal.project")
    return items


def _project_effect(connection: Connection, job: str, entry: JournalEntry, part: int, effect: Effect) -> list[FeedRow]:
    """Write the effect of an event; return the feed items that tell of it."""
    match effect:
        case Save(what=ModelVersion() as version):
            _store_version(connection, job, entry, version)
            row = FeedRow(entry.seq, part, entry.at, "version", {"number": version.number})
            return [row, *_detect_divergence(connection, job, entry, part, version)]
        case Measured():
            metrics = codec.plain(effect.metrics)
            merge_metrics(connection, job, effect.number, metrics)
            data = {"number": effect.number, "metrics": metrics}
            return [FeedRow(entry.seq, part, entry.at, "metrics", data)]
        case JobEvent():
            data = job_event(effect.kind, effect.text, effect.version, effect.node)
            return [FeedRow(entry.seq, part, entry.at, "job_event", data)]
    return []


def _detect_divergence(
    connection: Connection, job: str, entry: JournalEntry, part: int, version: ModelVersion
) -> list[FeedRow]:
    """Return a job event if synchronizations come faster since this version. Its part is negative: no effect has it."""
    text = divergence_detector.find(connection, job, version)
    if text is None:
        return []
    data = job_event("warning", text, version.number)
    return [FeedRow(entry.seq, -1 - part, entry.at, "job_event", data)]


def _store_version(connection: Connection, job: str, entry: JournalEntry, version: ModelVersion) -> None:
    reports = [[node, list(task), weight, digest] for node, task, weight, digest in version.reports]
    row = {
        "job": job,
        "number": version.number,
        "seq": entry.seq,
        "digest": version.model.digest,
        "nbytes": version.model.nbytes,
        "why": version.why,
        "opened_s": version.opened_s,
        "closed_s": version.closed_s,
        "closed_at": entry.at,
        "weight": version.weight,
        "asked": version.asked,
        "reports": reports,
        **version_history.columns({}, complete=False),
        "numbers": codec.plain(version.numbers),
    }
    connection.execute(_ADD_VERSION, row)
    version_history.mark_complete(connection, job, before=version.number)


def merge_metrics(connection: Connection, job: str, number: int, metrics: dict[str, Any]) -> None:
    """Add metrics to those known of a version; newer values win."""
    here = {"of_job": job, "of_number": number}
    known = connection.execute(_METRICS, here).first()
    if known is not None:
        columns = version_history.columns({**known.metrics, **metrics}, complete=known.newest != number)
        connection.execute(_SET_METRICS, {**here, **{f"new_{name}": value for name, value in columns.items()}})


def _snapshot(connection: Connection, job: str, entry: JournalEntry, state: dict[str, Any]) -> None:
    """Keep the state, and trim what two snapshots make superfluous."""
    row = {"job": job, "seq": entry.seq, "now": entry.now, "state": state}
    connection.execute(_ADD_SNAPSHOT, row)
    connection.execute(_TRIM_UPDATES, {"of_job": job, "of_seq": entry.seq})
    crashpoint("journal.snapshot")
    connection.execute(_TRIM_SNAPSHOTS, {"of_job": job})
    connection.execute(_TRIM_EVENTS, {"of_job": job})
