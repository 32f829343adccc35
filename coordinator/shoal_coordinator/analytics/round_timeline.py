"""One round, client by client: phases with their times, and the earliest possible closing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from shoal.core.errors import Refused
from shoal.core.server.round_control import SECONDS_KEPT
from shoal.schedules.rounds import Rounds
from shoal_coordinator.analytics.report_queries import phases_view
from shoal_coordinator.jobs.job_registry import JobRecord
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.schemas.reports import NodeInRound, RoundTimeline
from shoal_coordinator.schemas.values import iso
from shoal_coordinator.storage.tables import reports, versions


async def timeline(
    connection: AsyncConnection, record: JobRecord, number: int, after: int, limit: int
) -> RoundTimeline:
    """Return that round of a job: the next `limit` of its reports after one. Raises `Refused` if it was not opened
    yet.

    Waits for a round that is closed and not written yet.
    """
    job, runner = record.spec.name, record.runner
    mine = (reports.c.job == job, reports.c.round == number)
    later = select(reports).where(*mine, reports.c.id > after).order_by(reports.c.id).limit(limit + 1)
    version = select(versions).where(versions.c.job == job, versions.c.number == number)
    row = (await connection.execute(version)).first()
    if row is None and runner is not None and number <= runner.hub.progress.version:
        await connection.rollback()  # to see later commits
        await runner.feed.wait_written()
        row = (await connection.execute(version)).first()
    found = (await connection.execute(later)).all()
    opened = row.opened_s if row is not None else _opened(runner, number)
    if opened is None:
        raise Refused(f"round {number} of job {job} has not begun", code="round.unknown", hint="see GET …/versions")
    shown, rest = found[:limit], len(found) > limit
    clients = [_counted(one, opened) for one in shown]
    if row is None and not rest and runner is not None:
        clients += _pending(runner, opened, {one.task for one in shown})
    seconds = row.closed_s - row.opened_s if row is not None else _lasted(runner, opened)
    schedule = record.spec.build_schedule()
    rounds = schedule if isinstance(schedule, Rounds) else None
    asked = _asked(runner) if row is None else row.asked
    wanted = max(1, asked - rounds.over_select) if rounds else 0
    quorum = rounds.needs_of(wanted, wanted) if rounds else None
    return RoundTimeline(
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


def _opened(runner: JobRunner | None, number: int) -> float | None:
    """Return when the open round was opened; None for any other."""
    if (
        runner is None
        or runner.gate.has_ended
        or runner.hub.progress.version + 1 != number
        or runner.hub.progress.phase != "running"
    ):
        return None
    return runner.hub.state.round.opened_at


def _lasted(runner: JobRunner | None, opened: float) -> float:
    return max(0.0, runner.clock.now() - opened) if runner is not None else 0.0


def _asked(runner: JobRunner | None) -> int:
    return len(runner.hub.state.round.asked) if runner is not None else 0


def _counted(row: Row[Any], opened: float) -> NodeInRound:
    end = row.now - opened
    return NodeInRound(
        node=row.node,
        task=row.task,
        start_s=None if row.seconds is None else end - row.seconds,
        end_s=end,
        staleness=row.staleness,
        phases=phases_view(row),
    )


def _pending(runner: JobRunner, opened: float, counted: set[str]) -> list[NodeInRound]:
    """Return the nodes that have a task and have not answered yet."""
    hub, clients = runner.hub, []
    for member in hub.roster.all_members():
        task = member.task
        if task is None or task.kind not in ("train", "gossip") or f"{task.id[0]}.{task.id[1]}" in counted:
            continue
        phases = runner.task_timers.so_far(member.node, task.id)
        start = None if phases.seconds is None else runner.clock.now() - phases.seconds - opened
        clients.append(
            NodeInRound(
                node=member.node,
                task=f"{task.id[0]}.{task.id[1]}",
                start_s=start,
                end_s=None,
                staleness=hub.progress.version - task.version,
                phases=phases_view(phases),
            )
        )
    return clients


async def _quorum_s(connection: AsyncConnection, mine: Sequence[Any], opened: float, quorum: int) -> float | None:
    """Return when the round had enough reports."""
    query = select(reports.c.now).where(*mine).order_by(reports.c.now).offset(quorum - 1).limit(1)
    found = (await connection.execute(query)).scalar()
    return None if found is None else found - opened


async def _before(connection: AsyncConnection, job: str, number: int) -> list[float]:
    """Return the length of the rounds before that one."""
    columns = versions.c.closed_s - versions.c.opened_s
    query = select(columns).where(versions.c.job == job, versions.c.number < number, versions.c.number > 0)
    return list((await connection.execute(query.order_by(versions.c.number.desc()).limit(SECONDS_KEPT))).scalars())
