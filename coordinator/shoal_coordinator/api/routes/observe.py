"""Routes for diagnosis: failures, logs, alerts and status."""

from __future__ import annotations

import logging
from typing import Annotated, Any, get_args

from fastapi import Depends, Path, Query, Request
from sqlalchemy import func, select

from shoal.core.errors import Refused
from shoal_coordinator.alerts import alert_loop
from shoal_coordinator.api.authentication import DashboardReader, Node, Operator
from shoal_coordinator.api.dependencies import Db, Events, NodeLogs, StatusOfReplica
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.http.problems import errors
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.schemas.observability import (
    AlertList,
    AlertView,
    FailedIn,
    FailureList,
    FailureView,
    FollowerView,
    LeaderView,
    Level,
    LogLine,
    LogList,
    LogMatches,
    LogReceipt,
    LogUpload,
)
from shoal_coordinator.schemas.values import iso
from shoal_coordinator.storage.tables import alerts, logs
from shoal_coordinator.telemetry import failures
from shoal_coordinator.telemetry.event_bus import Item
from shoal_coordinator.telemetry.log_store import LogFilter, contains

router = api_router(tags=["observe"], responses=errors(401, 403))

Id = Annotated[int | None, Query(ge=0, lt=2**63, description="only what is older than this")]
Named = Annotated[str | None, Query(max_length=63)]


@router.get("/failures")
async def list_failures(
    _: DashboardReader,
    database: Db,
    job: Named = None,
    node: Named = None,
    phase: FailedIn | None = None,
    before: Id = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> FailureList:
    """List failed tasks, newest first, optionally of one job or node."""
    wanted = failures.FailureFilter(job, node, phase)
    async with database.reader.connect() as connection:
        rows = await failures.newest(connection, wanted, before, limit)
    found = [FailureView.model_validate({**row, "at": iso(row["at"])}) for row in rows]
    return FailureList(failures=found, before=found[-1].id if len(found) == limit else None)


@router.get("/leader")
async def show_leader(_: DashboardReader, replica_status: StatusOfReplica) -> LeaderView | None:
    """Return the leader and the followers; null for a database that only one coordinator can use."""
    if replica_status is None:
        return None
    now = replica_status()
    followers = [FollowerView(address=_plain(address), jobs=jobs) for address, jobs in now.followers.items()]
    return LeaderView(address=_plain(now.leader), term=now.term, followers=followers)


def _plain(address: str) -> str:
    """Return an address without its certificate's fingerprint."""
    return address.partition("#")[0]


# Logs

MATCHES_MAX = 10_000


@router.post("/logs", tags=["node"], responses=errors(426))
async def upload_logs(body: LogUpload, request: Request, node: Node, log_store: NodeLogs) -> LogReceipt:
    """Store log lines of a node. Idempotent; does not renew the node's lease."""
    label(request, node=node, kind="logs")
    lines = [one.to_record() for one in body.lines]
    return LogReceipt(wait_s=round(log_store.take(node, body.incarnation, lines, body.dropped), 3))


async def _log_filter(job: Named = None, node: Named = None, level: Level = "debug") -> LogFilter:
    """Build a log filter. `node`: empty for the coordinator's own lines. `level`: the lowest."""
    return LogFilter(job, node, logging.getLevelName(level.upper()) if level != "debug" else 0)


WantedLogs = Annotated[LogFilter, Depends(_log_filter)]


@router.get("/logs")
async def list_logs(
    _: DashboardReader,
    database: Db,
    wants: WantedLogs,
    after: Annotated[int | None, Query(ge=0, lt=2**63, description="the oldest that are newer than this")] = None,
    before: Id = None,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
) -> LogList:
    """List log lines, oldest first: the newest, or those next to a given line."""
    query = select(logs).where(*wants.conditions()).limit(limit)
    if before is not None:
        query = query.where(logs.c.id < before)
    if after is not None:
        query = query.where(logs.c.id > after)
    ascending = after is not None
    async with database.reader.connect() as connection:
        rows = (await connection.execute(query.order_by(logs.c.id if ascending else logs.c.id.desc()))).mappings().all()
    found = [_line(row) for row in (rows if ascending else reversed(rows))]
    return LogList(lines=found, older=ascending or len(found) == limit)


def _line(row: Any) -> LogLine:
    level = logging.getLevelName(min(max(row["level"] // 10 * 10, 10), 50)).lower()
    assert level in get_args(Level)
    return LogLine.model_validate({**row, "at": iso(row["at"]), "level": level})


@router.get("/logs/matches")
async def search_logs(
    _: DashboardReader,
    database: Db,
    wants: WantedLogs,
    q: Annotated[str, Query(min_length=1, max_length=200, description="text, in capitals or not")],
) -> LogMatches:
    """Search the log for a text."""
    conditions = (*wants.conditions(), contains(q))
    newest = select(logs.c.id).where(*conditions).order_by(logs.c.id.desc()).limit(MATCHES_MAX)
    async with database.reader.connect() as connection:
        ids = (await connection.execute(newest)).scalars().all()
        total = len(ids)
        if total == MATCHES_MAX:
            total = (await connection.execute(select(func.count()).where(*conditions))).scalar() or 0
    return LogMatches(total=total, ids=list(reversed(ids)))


# Alerts


@router.get("/alerts")
async def list_alerts(
    _: DashboardReader,
    database: Db,
    active: Annotated[bool, Query(description="only those that are not cleared")] = False,
    before: Id = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> AlertList:
    """List alerts, newest first."""
    query = select(alerts).order_by(alerts.c.id.desc()).limit(limit)
    if active:
        query = query.where(alerts.c.cleared_at.is_(None))
    if before is not None:
        query = query.where(alerts.c.id < before)
    async with database.reader.connect() as connection:
        rows = (await connection.execute(query)).mappings().all()
    found = [AlertView.model_validate(alert_loop.alert_row(row)) for row in rows]
    return AlertList(alerts=found, before=found[-1].id if len(found) == limit else None)


@router.post("/alerts/{alert}/acknowledge", responses=errors(404))
async def acknowledge_alert(
    alert: Annotated[int, Path(ge=1, lt=2**63)], _: Operator, database: Db, event_bus: Events
) -> AlertView:
    """Acknowledge an alert. Idempotent."""
    row = await database.write(lambda c: alert_loop.acknowledge(c, alert))
    if row is None:
        raise Refused(f"there is no alert {alert}", code="alert.unknown", hint="see GET /api/v1/alerts")
    event_bus.publish(Item("alert", row["job"], row))
    return AlertView.model_validate(row)
