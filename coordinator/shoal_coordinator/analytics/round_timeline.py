"""One round, client by client: who did what when, and when it might have closed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from shoal.core.errors import Refused
from shoal.core.hub_acts import SECONDS_KEPT
from shoal.schedules.rounds import Rounds
from shoal_coordinator.driver import Driver
from shoal_coordinator.job_record import Record
from shoal_coordinator.report_queries import phases_of
from shoal_coordinator.report_views import ClientInRound, Round
from shoal_coordinator.tables import reports, versions
from shoal_coordinator.views import iso


async def look(connection: AsyncConnection, record: Record, number: int, after: int, limit: int) -> Round:
    """That round of a job: the next `limit` of its reports after one. Raises `Refused` when it was not opened yet.

    Waits for a round that is closed, as everybody has been shown, and not written yet.
    """
    job, driver = record.spec.name, record.driver
    mine = (reports.c.job == job, reports.c.round == number)
    later = select(reports).where(*mine, reports.c.id > after).order_by(reports.c.id).limit(limit + 1)
    version = select(versions).where(versions.c.job == job, versions.c.number == number)
    row = (await connection.execute(version)).first()
    if row is None and driver is not None and number <= driver.hub.version:
        await connection.rollback()  # what is written meanwhile is to be seen
        await driver.written()
        row = (await connection.execute(version)).first()
    found = (await connection.execute(later)).all()
    opened = row.opened if row is not None else _opened(driver, number)
    if opened is None:
        raise Refused(f"round {number} of job {job} has not begun", code="round.unknown", hint="see GET …/versions")
    shown, rest = found[:limit], len(found) > limit
    clients = [_counted(one, opened) for one in shown]
    if row is None and not rest and driver is not None:
        clients += _pending(driver, opened, {one.order for one in shown})
    seconds = row.closed - row.opened if row is not None else _lasted(driver, opened)
    schedule = record.spec.build_schedule()
    rounds = schedule if isinstance(schedule, Rounds) else None
    asked = _asked(driver) if row is None else row.asked
    wanted = max(1, asked - rounds.over) if rounds else 0
    quorum = rounds.needs_of(wanted, wanted) if rounds else None
    return Round(
        round=number,
        state="open" if row is None else "closed",
        why="" if row is None else row.why,
        opened_at=None if row is None else iso(row.closed_at - seconds),
        seconds=seconds,
        asked=asked,
        quorum=quorum,
        quorum_s=await _quorum_s(connection, mine, opened, quorum) if quorum else None,
        deadline_s=rounds.deadline_after(await _before(connection, job, number)) if rounds else None,
        clients=clients,
        next=shown[-1].id if rest else None,
    )


def _opened(driver: Driver | None, number: int) -> float | None:
    """When the round in hand was opened; None for any other."""
    if driver is None or driver.ended or driver.hub.version + 1 != number or driver.hub.phase != "running":
        return None
    return driver.hub.gathered.opened


def _lasted(driver: Driver | None, opened: float) -> float:
    return max(0.0, driver.now() - opened) if driver is not None else 0.0


def _asked(driver: Driver | None) -> int:
    return len(driver.hub.gathered.asked) if driver is not None else 0


def _counted(row: Row[Any], opened: float) -> ClientInRound:
    end = row.now - opened
    return ClientInRound(
        node=row.node,
        order=row.order,
        start_s=None if row.seconds is None else end - row.seconds,
        end_s=end,
        staleness=row.staleness,
        phases=phases_of(row),
    )


def _pending(driver: Driver, opened: float, counted: set[str]) -> list[ClientInRound]:
    """Who has an order and has not answered yet."""
    hub, clients = driver.hub, []
    for member in hub.roster.all():
        order = member.order
        if order is None or order.kind not in ("train", "gossip") or f"{order.id[0]}.{order.id[1]}" in counted:
            continue
        phases = driver.watches.so_far(member.node, order.id)
        start = None if phases.seconds is None else driver.now() - phases.seconds - opened
        clients.append(
            ClientInRound(
                node=member.node,
                order=f"{order.id[0]}.{order.id[1]}",
                start_s=start,
                end_s=None,
                staleness=hub.version - order.version,
                phases=phases_of(phases),
            )
        )
    return clients


async def _quorum_s(connection: AsyncConnection, mine: Sequence[Any], opened: float, quorum: int) -> float | None:
    """When the round had so many reports."""
    query = select(reports.c.now).where(*mine).order_by(reports.c.now).offset(quorum - 1).limit(1)
    found = (await connection.execute(query)).scalar()
    return None if found is None else found - opened


async def _before(connection: AsyncConnection, job: str, number: int) -> list[float]:
    """How long the rounds before that one took."""
    columns = versions.c.closed - versions.c.opened
    query = select(columns).where(versions.c.job == job, versions.c.number < number, versions.c.number > 0)
    return list((await connection.execute(query.order_by(versions.c.number.desc()).limit(SECONDS_KEPT))).scalars())
