"""Rows of counted reports, projected from the journal.

A row is keyed by the report's event, so that a replay writes it once. Phase times are measured outside the journal: a
replay leaves those that were written, and after a crash they may be unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from shoal.core.protocol.machine import Effect, Event, Send
from shoal.core.protocol.message import Ack, Kind, Report, TaskId
from shoal.core.server.hub import Hub
from shoal.wire import codec
from shoal_coordinator.storage.bulk_insert import BulkInsert
from shoal_coordinator.storage.dialects import insert
from shoal_coordinator.storage.tables import reports
from shoal_coordinator.telemetry.task_timing import UNKNOWN, Phases

_ADD = BulkInsert(insert(reports).on_conflict_do_nothing())


@dataclass
class Counted:
    """A report on a task that stood, as its hub saw it."""

    node: str
    task: TaskId
    kind: Kind
    version: int
    round: int | None
    """The version that it became a part of; None: it only measured."""
    staleness: int
    report: Report
    phases: Phases = UNKNOWN
    at_s: float | None = None
    """Time of the fold on the job's clock; None if it was not measured: the event's time is used."""

    def is_in(self, effects: Sequence[Effect]) -> bool:
        """Return whether the report counted, from the effects."""
        acks = (e.message for e in effects if isinstance(e, Send) and e.to == self.node and isinstance(e.message, Ack))
        return any(ack.counted and ack.task == self.task for ack in acks)


def counted(hub: Hub, event: Event) -> Counted | None:
    """Return the report of an event, if it answers the node's task. Call it before the hub handles the event."""
    member = hub.roster.get(event.node) if isinstance(event, Report) else None
    if not isinstance(event, Report) or member is None or member.task is None or member.task.id != event.task:
        return None
    task = member.task
    if task.kind == "init":
        return None
    becomes = None if task.kind == "evaluate" else hub.progress.version + 1
    return Counted(event.node, task.id, task.kind, task.version, becomes, hub.progress.version - task.version, event)


class JournaledReport(NamedTuple):
    """A report, with its event's number in the journal, and when that happened on the hub's clock and the wall's."""

    report: Counted
    seq: int
    now: float
    at: float


def store(connection: Connection, job: str, found: Sequence[JournaledReport]) -> None:
    """Write reports down. One that was written before stays as it is."""
    _ADD.write(connection, [_row(job, *one) for one in found])


def _row(job: str, report: Counted, seq: int, now: float, at: float) -> dict[str, object]:
    term, n = report.task
    return {
        "job": job,
        "seq": seq,
        "node": report.node,
        "task": f"{term}.{n}",
        "kind": report.kind,
        "version": report.version,
        "round": report.round,
        "staleness": report.staleness,
        "weight": report.report.weight,
        "norm": report.report.norm,
        "metrics": codec.plain(report.report.metrics),
        "now": now if report.at_s is None else report.at_s,
        "at": at,
        **report.phases._asdict(),
    }


def trim_reports(connection: Connection, job: str, kept: int) -> None:
    """Forget all but the newest of a job."""
    newest = select(reports.c.id).where(reports.c.job == job).order_by(reports.c.id.desc()).offset(kept).limit(1)
    last = connection.execute(newest).scalar()
    if last is not None:
        connection.execute(delete(reports).where(reports.c.job == job, reports.c.id <= last))
