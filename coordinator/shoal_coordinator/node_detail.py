"""One node as its page shows it: the jobs that it worked in, and when it came and went."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from shoal_coordinator import describe, views
from shoal_coordinator.service import Coordinator
from shoal_coordinator.tables import feed, reports
from shoal_coordinator.views import iso

HISTORY = 200
"""Notes on its coming and going that are told, the newest."""


async def look(coordinator: Coordinator, node: str) -> views.NodeDetail:
    """A node that is known."""
    counted = select(reports.c.job, func.count(), func.max(reports.c.at)).where(reports.c.node == node)
    told = select(feed).where(
        feed.c.topic == "note", feed.c.data["kind"].as_string() == "node", feed.c.data["node"].as_string() == node
    )
    async with coordinator.database.reader.connect() as connection:
        known = {job: (n, at) for job, n, at in await connection.execute(counted.group_by(reports.c.job))}
        notes = (await connection.execute(told.order_by(feed.c.id.desc()).limit(HISTORY))).all()
    jobs = sorted(known.keys() | _members(coordinator, node), key=_newest_first(coordinator))
    return views.NodeDetail(
        **describe.node(coordinator, node).model_dump(),
        parts=[_part(coordinator, job, node, *known.get(job, (0, None))) for job in jobs],
        history=[views.NodeNote(id=row.id, at=iso(row.at), job=row.job, **row.data) for row in notes],
    )


def _members(coordinator: Coordinator, node: str) -> set[str]:
    """Jobs whose rosters name it."""
    return {driver.name for driver in coordinator.drivers() if driver.hub.roster.get(node) is not None}


def _newest_first(coordinator: Coordinator) -> Any:
    return lambda job: -coordinator.records[job].created_at if job in coordinator.records else 0.0


def _part(coordinator: Coordinator, job: str, node: str, count: int, at: float | None) -> views.NodePart:
    record = coordinator.records.get(job)
    member = record.driver.hub.roster.get(node) if record is not None and record.driver is not None else None
    doing, book = coordinator.presence.doing.get((job, node)), coordinator.ledger.of_node
    here = member is not None and member.here and record is not None and record.ended_at is None
    left_out = ""
    if here and member is not None and record is not None and record.driver is not None:
        left_out = record.driver.hub.plan.selection.excludes(member.candidate)
    return views.NodePart(
        job=job,
        here=here and not left_out,
        left_out=left_out,
        reports=count,
        reported_at=iso(at),
        up_bytes=book.get((job, node, "up"), 0),
        down_bytes=book.get((job, node, "down"), 0),
        failures=doing.failures if doing is not None else 0,
    )
