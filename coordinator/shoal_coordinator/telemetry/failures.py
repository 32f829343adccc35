"""Failed tasks: the node, the phase, the error, and the reaction.

`from_event` is a pure function of the hub, the event and its effects, so that a replay finds the same failures.
There is one row per task: a later failure of the task (its report was refused, then the node reports the failure
itself) replaces the earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from sqlalchemy import Connection, RowMapping, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from shoal.core.protocol.machine import Effect, Event, JobEvent, ModelVersion, NodeLost, Save, Send
from shoal.core.protocol.message import Ack, Report, Task, TaskFailed
from shoal.core.server.hub import Hub
from shoal_coordinator.schemas.observability import FailedIn, Outcome
from shoal_coordinator.storage.dialects import insert
from shoal_coordinator.storage.tables import failures
from shoal_coordinator.telemetry.event_bus import Item

FAILURES_KEPT = 1000
"""Newest failures of a job that are kept."""

ERROR_CHARACTERS_MAX = 1000


@dataclass(frozen=True)
class Failure:
    """One task that was not done."""

    node: str
    task: str
    version: int
    kind: str
    phase: FailedIn
    error: str
    traceback: str = ""
    outcome: Outcome = "awaited"
    outcome_why: str = "its task stands"


def task_before(hub: Hub, event: Event) -> Task | None:
    """Return the current task of the node of a failure event. Call it before the hub handles the event."""
    if not isinstance(event, TaskFailed | Report | NodeLost):
        return None
    member = hub.roster.get(event.node)
    if member is None or member.task is None or (isinstance(event, NodeLost) and not member.is_present):
        return None
    return member.task if isinstance(event, NodeLost) or member.task.id == event.task else None


def from_event(hub: Hub, task: Task, event: Event, effects: Sequence[Effect]) -> Failure | None:
    """Return the failure that an event was, from the task before it and its effects."""
    match event:
        case TaskFailed():
            failure = _failure(task, event.phase or "unknown", event.error)
            failure = replace(failure, traceback=event.traceback)
        case NodeLost():
            failure = _failure(task, "contact", event.why)
        case _:
            answers = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Ack)]
            refusals = [answer.why for answer in answers if answer.task == task.id and not answer.counted]
            if not refusals:
                return None
            failure = _failure(task, "fold", refusals[0])
    outcome, why = _outcome(hub, task.node, effects, lost=isinstance(event, NodeLost))
    return replace(failure, outcome=outcome, outcome_why=why[:ERROR_CHARACTERS_MAX])


def from_refusal(task: Task, error: str) -> Failure:
    """Return the failure for a report that was refused before the hub; its task stays until the node gives it up."""
    return _failure(task, "upload", error)


def _failure(task: Task, phase: FailedIn, error: str) -> Failure:
    task_id, text = f"{task.id[0]}.{task.id[1]}", error[:ERROR_CHARACTERS_MAX]
    return Failure(task.node, task_id, task.version, task.kind, phase, text)


def _outcome(hub: Hub, node: str, effects: Sequence[Effect], *, lost: bool) -> tuple[Outcome, str]:
    """Return the hub's immediate reaction and its reason."""
    decisions = [e.text for e in effects if isinstance(e, JobEvent) and e.kind == "decision"]
    why = decisions[0] if decisions else ""
    asked = [e.to for e in effects if isinstance(e, Send) and isinstance(e.message, Task)]
    closed = any(isinstance(e, Save) and isinstance(e.what, ModelVersion) for e in effects)
    member = hub.roster.get(node)
    if hub.progress.paused_at is not None:
        return "paused", f"the job is paused: {hub.progress.paused_why}"
    if member is not None and member.is_set_aside:
        return "set-aside", f"{member.failures} failures in a row"
    if closed:  # later tasks belong to the next version
        return "left-out", why
    if asked:
        return "asked-again" if node in asked else "replaced", why
    return ("awaited", Failure.outcome_why) if lost else ("left-out", "the others are waited for")


def store(connection: Connection, job: str, at: float, failure: Failure) -> list[Item]:
    """Write a failure down, and forget the oldest; nothing to tell when it was written down before."""
    row = {"job": job, "at": at, **asdict(failure)}
    changed = {name: value for name, value in row.items() if name not in ("job", "node", "task")}
    adding = insert(failures).values(row)
    newer = adding.on_conflict_do_update(
        index_elements=["job", "node", "task"], set_=changed, where=failures.c.at < adding.excluded.at
    )
    number = connection.execute(newer.returning(failures.c.id)).scalar()
    if number is None:
        return []
    mine = failures.c.job == job
    oldest = (
        select(failures.c.id)
        .where(mine)
        .order_by(failures.c.id.desc())
        .offset(FAILURES_KEPT)
        .limit(1)
        .scalar_subquery()
    )
    connection.execute(delete(failures).where(mine, failures.c.id <= oldest))
    return [Item("failure", job, {"id": number, **row})]


@dataclass(frozen=True)
class FailureFilter:
    """Filter of failures by job, node and phase; None matches all."""

    job: str | None = None
    node: str | None = None
    phase: FailedIn | None = None


async def newest(
    connection: AsyncConnection, wanted: FailureFilter, before: int | None, limit: int
) -> Sequence[RowMapping]:
    """Return rows, newest first, with an id below `before`."""
    query = select(failures).order_by(failures.c.id.desc()).limit(limit)
    for name, value in vars(wanted).items():
        if value is not None:
            query = query.where(failures.c[name] == value)
    if before is not None:
        query = query.where(failures.c.id < before)
    return (await connection.execute(query)).mappings().all()
