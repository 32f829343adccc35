"""What each counted report said: kept as it counts, projected from the journal like all that people read.

A row is keyed by the report's event, so that a replay writes it once. How long its phases took is measured beside the
journal: a replay leaves what was written before, and where a crash came first, they are not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from shoal import wire
from shoal.core.hub import Hub
from shoal.core.machine import Effect, Event, Send
from shoal.core.message import Ack, Kind, OrderId, Report
from shoal_coordinator.bulk import Bulk
from shoal_coordinator.dialects import insert
from shoal_coordinator.stopwatch import UNKNOWN, Phases
from shoal_coordinator.tables import reports

_ADD = Bulk(insert(reports).on_conflict_do_nothing())


@dataclass
class Counted:
    """A report on an order that stood, as its hub saw it."""

    node: str
    order: OrderId
    kind: Kind
    version: int
    round: int | None
    """The version that it became a part of; None: it only measured."""
    staleness: int
    said: Report
    phases: Phases = UNKNOWN
    at_s: float | None = None
    """When it had been folded, on the job's clock; None: nobody was there to see, and the event's time must do."""

    def is_in(self, effects: Sequence[Effect]) -> bool:
        """Whether it counted, by what followed."""
        acks = (e.body for e in effects if isinstance(e, Send) and e.to == self.node and isinstance(e.body, Ack))
        return any(ack.counted and ack.order == self.order for ack in acks)


def counted(hub: Hub, event: Event) -> Counted | None:
    """The report that an event is, if it answers the order that stands; asked before the hub takes it."""
    member = hub.roster.get(event.node) if isinstance(event, Report) else None
    if not isinstance(event, Report) or member is None or member.order is None or member.order.id != event.order:
        return None
    order = member.order
    if order.kind == "init":
        return None
    becomes = None if order.kind == "evaluate" else hub.version + 1
    return Counted(event.node, order.id, order.kind, order.version, becomes, hub.version - order.version, event)


class Kept(NamedTuple):
    """A report, with its event's number in the journal, and when that happened on the hub's clock and the wall's."""

    report: Counted
    seq: int
    now: float
    at: float


def keep(connection: Connection, job: str, found: Sequence[Kept]) -> None:
    """Write reports down. One that was written before stays as it is."""
    _ADD.write(connection, [_row(job, *one) for one in found])


def _row(job: str, report: Counted, seq: int, now: float, at: float) -> dict[str, object]:
    boot, n = report.order
    return {
        "job": job,
        "seq": seq,
        "node": report.node,
        "order": f"{boot}.{n}",
        "kind": report.kind,
        "version": report.version,
        "round": report.round,
        "staleness": report.staleness,
        "weight": report.said.weight,
        "norm": report.said.norm,
        "metrics": wire.plain(report.said.metrics),
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
