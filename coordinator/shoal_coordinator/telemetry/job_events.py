"""The feed of a job: the job events and other items that people and dashboards read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, select

from shoal.core.protocol.machine import JobEventKind
from shoal_coordinator.storage.bulk_insert import BulkInsert
from shoal_coordinator.storage.dialects import insert
from shoal_coordinator.storage.tables import job_events
from shoal_coordinator.telemetry.event_bus import Item

_ADD_ITEMS = BulkInsert(
    insert(job_events).on_conflict_do_nothing().returning(job_events.c.seq, job_events.c.part, job_events.c.id)
)
_KIND = job_events.c.data["kind"].as_string()


def job_event(kind: JobEventKind, text: str, version: int = 0, node: str = "") -> dict[str, Any]:
    """Return the data of a job event's feed item."""
    return {"version": version, "kind": kind, "node": node or None, "text": text}


class FeedRow(NamedTuple):
    """A feed item under its journal event and part."""

    seq: int
    part: int
    at: float
    topic: str
    data: dict[str, Any]


def insert_items(connection: Connection, job: str, rows: Sequence[FeedRow]) -> list[Item]:
    """Insert feed items; return those that did not exist."""
    written = _ADD_ITEMS.write(connection, [{"job": job, **row._asdict()} for row in rows])
    numbers = {(row.seq, row.part): row.id for row in written}
    new = [(row, numbers[row.seq, row.part]) for row in rows if (row.seq, row.part) in numbers]
    return [Item(row.topic, job, {"at": row.at, **row.data}, number) for row, number in new]


def add_feed_item(connection: Connection, job: str, topic: str, data: dict[str, Any]) -> list[Item]:
    """Insert a feed item that follows from no journal event, such as a held-out evaluation or a refusal."""
    least = connection.execute(select(func.min(job_events.c.seq)).where(job_events.c.job == job)).scalar() or 0
    return insert_items(connection, job, [FeedRow(min(least, 0) - 1, 0, time.time(), topic, data)])


def mode_changed_at(connection: Connection, job: str) -> float | None:
    """Return the wall-clock time of the job's last change of mode; None if it never changed."""
    return connection.execute(
        select(func.max(job_events.c.at)).where(job_events.c.job == job, _KIND == "mode")
    ).scalar()


def trim_feed(connection: Connection, job: str, kept: int) -> None:
    """Delete all but the newest `kept` items. Changes of the mode stay."""
    newest = connection.execute(
        select(job_events.c.id).where(job_events.c.job == job).order_by(job_events.c.id.desc()).offset(kept).limit(1)
    ).scalar()
    if newest is not None:
        connection.execute(
            delete(job_events).where(job_events.c.job == job, job_events.c.id <= newest, _KIND.is_distinct_from("mode"))
        )
