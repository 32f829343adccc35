"""The journal of a job: its events, its snapshots, and what people are told of them.

`append` comes first: an event is fed to the hub when it is committed, never before. `project` writes what follows from
an event for people (versions, notes, metrics) and the snapshot; all its rows are keyed by the event, so that a crash
between the two is repaired by projecting again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, delete, func, select, update

from shoal import wire
from shoal.core.errors import InvalidPayload, message_of
from shoal.core.machine import Effect, Event, Measured, Note, NoteKind, Save, Send, Version, Wake
from shoal.core.message import Pause, Report
from shoal_coordinator import failures, history, jump, reports
from shoal_coordinator.bulk import Bulk
from shoal_coordinator.crash import crashpoint
from shoal_coordinator.dialects import insert
from shoal_coordinator.failures import Failure
from shoal_coordinator.reports import Counted, Kept
from shoal_coordinator.stream import Item
from shoal_coordinator.tables import events, feed, snapshots, updates, versions

SNAPSHOTS_KEPT = 2

# Made once: SQLAlchemy finds a statement that it knows several times faster than it builds one.
_JOB: BindParameter[str] = bindparam("of_job")
_SEQ: BindParameter[int] = bindparam("of_seq")
_NUMBER: BindParameter[int] = bindparam("of_number")
_ADD_EVENTS = Bulk(insert(events))
_ADD_UPDATES = Bulk(insert(updates))
_ADD_VERSION = insert(versions).on_conflict_do_nothing()
_ADD_FEED = insert(feed).on_conflict_do_nothing().returning(feed.c.id)
_ADD_SNAPSHOT = insert(snapshots).on_conflict_do_nothing()
_NEWEST = select(func.max(versions.c.number)).where(versions.c.job == _JOB).scalar_subquery().label("newest")
_METRICS = select(versions.c.metrics, _NEWEST).where(versions.c.job == _JOB, versions.c.number == _NUMBER)
_SET_METRICS = (
    update(versions)
    .where(versions.c.job == _JOB, versions.c.number == _NUMBER)
    .values({name: bindparam(f"new_{name}") for name in history.columns({}, complete=False)})
)
_SNAPSHOTS = select(snapshots.c.seq).where(snapshots.c.job == _JOB).order_by(snapshots.c.seq.desc())
_TRIM_SNAPSHOTS = delete(snapshots).where(snapshots.c.job == _JOB, snapshots.c.seq < _SEQ)
_TRIM_UPDATES = delete(updates).where(updates.c.job == _JOB, updates.c.seq <= _SEQ)
_TRIM_EVENTS = delete(events).where(events.c.job == _JOB, events.c.seq <= _SEQ, ~events.c.aside)

_KIND = feed.c.data["kind"].as_string()


@dataclass(frozen=True)
class Entry:
    """An event in the journal. `now` is on the hub's clock, `at` on the wall's. `body`: that of a small report, which
    has no file."""

    seq: int
    now: float
    at: float
    event: Event
    body: bytes | None = None

    def inline(self) -> dict[str, bytes]:
        """The body that came with it, by its digest."""
        event = self.event
        named = event.body if isinstance(event, Report) else None
        return {named.digest: self.body} if named is not None and self.body is not None else {}


@dataclass(frozen=True)
class Fed:
    """An event that the hub has taken: what followed, the hub's state if it is to be kept now, what failed, and the
    report that it was, if that counted."""

    entry: Entry
    effects: Sequence[Effect]
    state: dict[str, Any] | None
    failure: Failure | None = None
    report: Counted | None = None

    @property
    def versions(self) -> list[Version]:
        """Versions that closed with it."""
        return [effect.what for effect in self.effects if isinstance(effect, Save) and isinstance(effect.what, Version)]

    @property
    def notes(self) -> bool:
        """Whether people are told of it."""
        return any(not isinstance(effect, Send | Wake) for effect in self.effects)

    @property
    def moves(self) -> bool:
        """Whether it changed the job's mode."""
        return any(isinstance(effect, Note) and effect.kind == "mode" for effect in self.effects)


def append(connection: Connection, job: str, entries: Sequence[Entry]) -> None:
    """Write events down. They count from the commit on."""
    rows = [
        {"job": job, "seq": e.seq, "now": e.now, "at": e.at, "event": wire.to_json(e.event), "aside": False}
        for e in entries
    ]
    _ADD_EVENTS.write(connection, rows)
    bodies = [{"job": job, "seq": e.seq, "body": e.body} for e in entries if e.body is not None]
    _ADD_UPDATES.write(connection, bodies)
    crashpoint("journal.append")


def begin_paused(connection: Connection, job: str) -> None:
    """Let a job's history begin with its pause: written down with the job, so that there is no instant without it."""
    append(connection, job, [Entry(1, 0.0, time.time(), Pause("it waits to be started"))])


def load(connection: Connection, job: str) -> tuple[dict[str, Any] | None, float, list[Entry], int]:
    """(state, its time, later events, last sequence number) from which a hub is restored."""
    snapshot = connection.execute(
        select(snapshots).where(snapshots.c.job == job).order_by(snapshots.c.seq.desc()).limit(1)
    ).first()
    seq, now = (snapshot.seq, snapshot.now) if snapshot else (0, 0.0)
    later = (
        select(events, updates.c.body)
        .outerjoin(updates, (updates.c.job == events.c.job) & (updates.c.seq == events.c.seq))
        .where(events.c.job == job, events.c.seq > seq)
        .order_by(events.c.seq)
    )
    rows = connection.execute(later).all()
    entries = [entry for row in rows if not row.aside and (entry := _entry(connection, row)) is not None]
    last = max([seq, *(row.seq for row in rows)])
    return (snapshot.state if snapshot else None), max([now, *(e.now for e in entries)]), entries, last


def _entry(connection: Connection, row: Row[Any]) -> Entry | None:
    """The event of a row; one that cannot be read (a later release's, a damaged one) is set aside, and noted."""
    try:
        return Entry(row.seq, row.now, row.at, wire.from_json(row.event), row.body)
    except (InvalidPayload, TypeError, ValueError) as error:
        text = f"event {row.seq} cannot be read and was set aside: {message_of(error)}"
        set_aside(connection, row.job, row.seq, note("warning", text))
        return None


def set_aside(connection: Connection, job: str, seq: int, why: dict[str, Any]) -> list[Item]:
    """An event that breaks the hub each time is kept, but not fed again; people are told why."""
    connection.execute(update(events).where(events.c.job == job, events.c.seq == seq).values(aside=True))
    return tell_aside(connection, job, "note", why)


def note(kind: NoteKind, text: str, version: int = 0, node: str = "") -> dict[str, Any]:
    """A note as the feed keeps it."""
    return {"version": version, "kind": kind, "node": node or None, "text": text}


def project(connection: Connection, job: str, fed: Sequence[Fed]) -> list[Item]:
    """Write down what followed from events; returns what browsers should be told, once it is committed."""
    items: list[Item] = []
    newest = {e.number: e for one in fed for e in one.effects if isinstance(e, Measured)}  # each contains those before
    for one in fed:
        for part, effect in enumerate(one.effects):
            if not isinstance(effect, Measured) or effect is newest[effect.number]:
                items += _project_effect(connection, job, one.entry, part, effect)
        if one.failure is not None:
            items += failures.keep(connection, job, one.entry.at, one.failure)
        if one.state is not None:
            _snapshot(connection, job, one.entry, one.state)
    counted = [(one.report, one.entry) for one in fed if one.report is not None]
    reports.keep(connection, job, [Kept(report, entry.seq, entry.now, entry.at) for report, entry in counted])
    crashpoint("journal.project")
    return items


def _project_effect(connection: Connection, job: str, entry: Entry, part: int, effect: Effect) -> list[Item]:
    match effect:
        case Save(what=Version() as version):
            _keep_version(connection, job, entry, version)
            told = _tell(connection, job, entry, part, "version", {"number": version.number})
            return told + _tell_jump(connection, job, entry, part, version)
        case Measured():
            metrics = wire.plain(effect.metrics)
            merge_metrics(connection, job, effect.number, metrics)
            return _tell(connection, job, entry, part, "metrics", {"number": effect.number, "metrics": metrics})
        case Note():
            return _tell(
                connection, job, entry, part, "note", note(effect.kind, effect.text, effect.version, effect.node)
            )
    return []


def _tell_jump(connection: Connection, job: str, entry: Entry, part: int, version: Version) -> list[Item]:
    """A note on a version at which synchronisations began to come faster; its part is none that an effect has."""
    text = jump.find(connection, job, version)
    if text is None:
        return []
    return _tell(connection, job, entry, -1 - part, "note", note("warning", text, version.number))


def _keep_version(connection: Connection, job: str, entry: Entry, version: Version) -> None:
    reports = [[node, list(order), weight, digest] for node, order, weight, digest in version.reports]
    row = {
        "job": job,
        "number": version.number,
        "seq": entry.seq,
        "digest": version.model.digest,
        "nbytes": version.model.nbytes,
        "why": version.why,
        "opened": version.opened,
        "closed": version.closed,
        "closed_at": entry.at,
        "weight": version.weight,
        "asked": version.asked,
        "reports": reports,
        **history.columns({}, complete=False),
        "numbers": wire.plain(version.numbers),
    }
    connection.execute(_ADD_VERSION, row)
    history.complete(connection, job, before=version.number)


def merge_metrics(connection: Connection, job: str, number: int, metrics: dict[str, Any]) -> None:
    """Add metrics to those known of a version; newer values win."""
    here = {"of_job": job, "of_number": number}
    known = connection.execute(_METRICS, here).first()
    if known is not None:
        columns = history.columns({**known.metrics, **metrics}, complete=known.newest != number)
        connection.execute(_SET_METRICS, {**here, **{f"new_{name}": value for name, value in columns.items()}})


def _tell(connection: Connection, job: str, entry: Entry, part: int, topic: str, data: dict[str, Any]) -> list[Item]:
    """A row of the feed; nothing when it is there already."""
    row = {"job": job, "seq": entry.seq, "part": part, "at": entry.at, "topic": topic, "data": data}
    number = connection.execute(_ADD_FEED, row).scalar()
    return [Item(topic, job, {"at": entry.at, **data}, number)] if number is not None else []


def tell_aside(connection: Connection, job: str, topic: str, data: dict[str, Any]) -> list[Item]:
    """A row of the feed that follows from no event of the journal (a held-out evaluation, a refusal)."""
    least = connection.execute(select(func.min(feed.c.seq)).where(feed.c.job == job)).scalar() or 0
    entry = Entry(min(least, 0) - 1, 0.0, time.time(), None)  # type: ignore[arg-type]
    return _tell(connection, job, entry, 0, topic, data)


def _snapshot(connection: Connection, job: str, entry: Entry, state: dict[str, Any]) -> None:
    """Keep the state, and trim what two snapshots make superfluous."""
    row = {"job": job, "seq": entry.seq, "now": entry.now, "state": state}
    connection.execute(_ADD_SNAPSHOT, row)
    connection.execute(_TRIM_UPDATES, {"of_job": job, "of_seq": entry.seq})
    crashpoint("journal.snapshot")
    newest = connection.execute(_SNAPSHOTS, {"of_job": job}).scalars().all()[:SNAPSHOTS_KEPT]
    oldest = {"of_job": job, "of_seq": newest[-1]}
    connection.execute(_TRIM_SNAPSHOTS, oldest)
    connection.execute(_TRIM_EVENTS, oldest)


def moved_at(connection: Connection, job: str) -> float | None:
    """When the job's mode changed last, on the wall's clock; None: never."""
    return connection.execute(select(func.max(feed.c.at)).where(feed.c.job == job, _KIND == "mode")).scalar()


def trim_feed(connection: Connection, job: str, kept: int) -> None:
    """Forget all but the newest notes, and those on the job's mode. Versions and metrics have their own table."""
    newest = connection.execute(
        select(feed.c.id).where(feed.c.job == job).order_by(feed.c.id.desc()).offset(kept).limit(1)
    ).scalar()
    if newest is not None:
        connection.execute(delete(feed).where(feed.c.job == job, feed.c.id <= newest, _KIND.is_distinct_from("mode")))
