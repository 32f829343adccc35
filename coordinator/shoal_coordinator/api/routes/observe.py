"""What went wrong, for people who look for the reason."""

from __future__ import annotations

import logging
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Path, Query, Request
from sqlalchemy import func, select

from shoal.core.errors import Refused
from shoal_coordinator import failures, watch
from shoal_coordinator.access import Coord, Node, Operator, Reader, label
from shoal_coordinator.logbook import Sought, holds
from shoal_coordinator.observe_views import (
    Alert,
    Alerts,
    Deputy,
    Failure,
    Failures,
    Level,
    LogLine,
    LogLines,
    LogMatches,
    Owner,
    ShownLines,
    Taken,
)
from shoal_coordinator.problems import errors
from shoal_coordinator.stream import Item
from shoal_coordinator.tables import alerts, logs
from shoal_coordinator.views import iso

router = APIRouter(tags=["observe"], responses=errors(401, 403))

Id = Annotated[int | None, Query(ge=0, lt=2**63, description="only what is older than this")]
Named = Annotated[str | None, Query(max_length=63)]


@router.get("/failures")
async def list_failures(
    request: Request,
    _: Reader,
    coordinator: Coord,
    job: Named = None,
    node: Named = None,
    phase: failures.FailedIn | None = None,
    before: Id = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Failures:
    """Orders that were not done, of a job, of a node, or all: who, how far, why, and what was done. Newest first."""
    label(request, kind="dashboard")
    wanted = failures.Wanted(job, node, phase)
    async with coordinator.database.reader.connect() as connection:
        rows = await failures.newest(connection, wanted, before, limit)
    found = [Failure.model_validate({**row, "at": iso(row["at"])}) for row in rows]
    return Failures(failures=found, before=found[-1].id if len(found) == limit else None)


@router.get("/owner")
async def owner(request: Request, _: Reader, coordinator: Coord) -> Owner | None:
    """Which coordinator leads, and which others own jobs; null where it is the only one its database can have."""
    label(request, kind="dashboard")
    if coordinator.standing is None:
        return None
    now = coordinator.standing()
    deputies = [Deputy(address=_plain(address), jobs=jobs) for address, jobs in now.deputies.items()]
    return Owner(address=_plain(now.owner), epoch=now.epoch, deputies=deputies)


def _plain(address: str) -> str:
    """Without the fingerprint of its certificate."""
    return address.partition("#")[0]


# Logs

MATCHES_MAX = 10_000


@router.post("/logs", tags=["node"], responses=errors(426))
async def take_logs(body: ShownLines, request: Request, node: Node, coordinator: Coord) -> Taken:
    """What a node has logged, for people. No sign of life; a batch that comes twice is kept once."""
    label(request, node=node, kind="logs")
    lines = [one.line() for one in body.lines]
    return Taken(wait_s=round(coordinator.logbook.take(node, body.boot, lines, body.dropped), 3))


async def _sought(job: Named = None, node: Named = None, level: Level = "debug") -> Sought:
    """`node`: empty for the coordinator's own lines. `level`: the least."""
    return Sought(job, node, logging.getLevelName(level.upper()) if level != "debug" else 0)


Wants = Annotated[Sought, Depends(_sought)]


@router.get("/logs")
async def list_logs(
    request: Request,
    _: Reader,
    coordinator: Coord,
    wants: Wants,
    after: Annotated[int | None, Query(ge=0, lt=2**63, description="the oldest that are newer than this")] = None,
    before: Id = None,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
) -> LogLines:
    """Lines of the log: the newest, or those next to a line that is named. Oldest first."""
    label(request, kind="dashboard")
    query = select(logs).where(*wants.conditions()).limit(limit)
    if before is not None:
        query = query.where(logs.c.id < before)
    if after is not None:
        query = query.where(logs.c.id > after)
    ascending = after is not None
    async with coordinator.database.reader.connect() as connection:
        rows = (await connection.execute(query.order_by(logs.c.id if ascending else logs.c.id.desc()))).mappings().all()
    found = [_line(row) for row in (rows if ascending else reversed(rows))]
    return LogLines(lines=found, older=ascending or len(found) == limit)


def _line(row: Any) -> LogLine:
    level = logging.getLevelName(min(max(row["level"] // 10 * 10, 10), 50)).lower()
    assert level in get_args(Level)
    return LogLine.model_validate({**row, "at": iso(row["at"]), "level": level})


@router.get("/logs/matches")
async def log_matches(
    request: Request,
    _: Reader,
    coordinator: Coord,
    wants: Wants,
    q: Annotated[str, Query(min_length=1, max_length=200, description="text, in capitals or not")],
) -> LogMatches:
    """Where a text stands in the log."""
    label(request, kind="dashboard")
    conditions = (*wants.conditions(), holds(q))
    newest = select(logs.c.id).where(*conditions).order_by(logs.c.id.desc()).limit(MATCHES_MAX)
    async with coordinator.database.reader.connect() as connection:
        ids = (await connection.execute(newest)).scalars().all()
        total = len(ids)
        if total == MATCHES_MAX:
            total = (await connection.execute(select(func.count()).where(*conditions))).scalar() or 0
    return LogMatches(total=total, ids=list(reversed(ids)))


# Alerts


@router.get("/alerts")
async def list_alerts(
    request: Request,
    _: Reader,
    coordinator: Coord,
    standing: Annotated[bool, Query(description="only those that are not over")] = False,
    before: Id = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Alerts:
    """Alerts, newest first."""
    label(request, kind="dashboard")
    query = select(alerts).order_by(alerts.c.id.desc()).limit(limit)
    if standing:
        query = query.where(alerts.c.cleared_at.is_(None))
    if before is not None:
        query = query.where(alerts.c.id < before)
    async with coordinator.database.reader.connect() as connection:
        rows = (await connection.execute(query)).mappings().all()
    found = [Alert.model_validate(watch.shown(row)) for row in rows]
    return Alerts(alerts=found, before=found[-1].id if len(found) == limit else None)


@router.post("/alerts/{alert}/acknowledge", responses=errors(404))
async def acknowledge(alert: Annotated[int, Path(ge=1, lt=2**63)], _: Operator, coordinator: Coord) -> Alert:
    """An operator knows of it. Twice is once."""
    row = await coordinator.database.write(lambda c: watch.acknowledge(c, alert))
    if row is None:
        raise Refused(f"there is no alert {alert}", code="alert.unknown", hint="see GET /api/v1/alerts")
    coordinator.broadcast.tell(Item("alert", row["job"], row))
    return Alert.model_validate(row)
