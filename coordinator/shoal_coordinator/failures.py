"""Failures, attributed: which node, with which order, how far it was, why, and what was done about it.

`found` is a pure function of the hub, the event and what followed from it, so that a replay finds the same. There is
one row for an order: what is said of it later (it was refused, then the node says so itself; it was lost, then it is
back and fails) replaces what was said before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from sqlalchemy import Connection, RowMapping, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from shoal.core.hub import Hub
from shoal.core.machine import Effect, Event, Lost, Note, Save, Send, Version
from shoal.core.message import Ack, Fail, Order, Report
from shoal_coordinator.dialects import insert
from shoal_coordinator.stream import Item
from shoal_coordinator.tables import failures

KEPT = 1000
"""Newest failures of a job that are kept."""

ERROR_CHARACTERS_MAX = 1000

FailedIn = Literal["unknown", "download", "init", "train", "evaluate", "gossip", "upload", "fold", "contact"]
"""`upload`: what the node sent was refused; `fold`: the hub could not count it; `contact`: the node fell silent."""

Outcome = Literal["asked-again", "replaced", "left-out", "suspended", "paused", "awaited"]
"""The node has a new order; others were asked in its place; the job goes on without it; it is not asked for a while, or
until it restarts; the job is paused; what it has still counts if it comes in time."""


@dataclass(frozen=True)
class Failure:
    """One order that was not done."""

    node: str
    order: str
    version: int
    kind: str
    phase: FailedIn
    error: str
    traceback: str = ""
    outcome: Outcome = "awaited"
    outcome_why: str = "its order stands"


def in_hand(hub: Hub, event: Event) -> Order | None:
    """The order that stands for the node that an event may be the failure of. To be asked before the hub takes it."""
    if not isinstance(event, Fail | Report | Lost):
        return None
    member = hub.roster.get(event.node)
    if member is None or member.order is None or (isinstance(event, Lost) and not member.here):
        return None
    return member.order if isinstance(event, Lost) or member.order.id == event.order else None


def found(hub: Hub, order: Order, event: Event, effects: Sequence[Effect]) -> Failure | None:
    """The failure that an event was, given the order that stood before it and what followed from it."""
    match event:
        case Fail():
            made = _failure(order, event.phase or "unknown", event.error)
            made = replace(made, traceback=event.traceback)
        case Lost():
            made = _failure(order, "contact", event.why)
        case _:
            answers = [e.body for e in effects if isinstance(e, Send) and isinstance(e.body, Ack)]
            refusals = [answer.why for answer in answers if answer.order == order.id and not answer.counted]
            if not refusals:
                return None
            made = _failure(order, "fold", refusals[0])
    outcome, why = _done(hub, order.node, effects, lost=isinstance(event, Lost))
    return replace(made, outcome=outcome, outcome_why=why[:ERROR_CHARACTERS_MAX])


def refused(order: Order, error: str) -> Failure:
    """A report that was refused before the hub heard of it: its order stands, until the node gives it up."""
    return _failure(order, "upload", error)


def _failure(order: Order, phase: FailedIn, error: str) -> Failure:
    shown, told = f"{order.id[0]}.{order.id[1]}", error[:ERROR_CHARACTERS_MAX]
    return Failure(order.node, shown, order.version, order.kind, phase, told)


def _done(hub: Hub, node: str, effects: Sequence[Effect], *, lost: bool) -> tuple[Outcome, str]:
    """What the hub did about it at once, and its reason."""
    decisions = [e.text for e in effects if isinstance(e, Note) and e.kind == "decision"]
    why = decisions[0] if decisions else ""
    asked = [e.to for e in effects if isinstance(e, Send) and isinstance(e.body, Order)]
    closed = any(isinstance(e, Save) and isinstance(e.what, Version) for e in effects)
    member = hub.roster.get(node)
    if hub.paused_at is not None:
        return "paused", f"the job is paused: {hub.paused_why}"
    if member is not None and member.suspended:
        return "suspended", f"{member.failures} failures in a row"
    if closed:  # what is asked then is the next version's
        return "left-out", why
    if asked:
        return "asked-again" if node in asked else "replaced", why
    return ("awaited", Failure.outcome_why) if lost else ("left-out", "the others are waited for")


def keep(connection: Connection, job: str, at: float, failure: Failure) -> list[Item]:
    """Write a failure down, and forget the oldest; nothing to tell when it was written down before."""
    row = {"job": job, "at": at, **asdict(failure)}
    changed = {name: value for name, value in row.items() if name not in ("job", "node", "order")}
    adding = insert(failures).values(row)
    newer = adding.on_conflict_do_update(
        index_elements=["job", "node", "order"], set_=changed, where=failures.c.at < adding.excluded.at
    )
    number = connection.execute(newer.returning(failures.c.id)).scalar()
    if number is None:
        return []
    mine = failures.c.job == job
    oldest = select(failures.c.id).where(mine).order_by(failures.c.id.desc()).offset(KEPT).limit(1).scalar_subquery()
    connection.execute(delete(failures).where(mine, failures.c.id <= oldest))
    return [Item("failure", job, {"id": number, **row})]


@dataclass(frozen=True)
class Wanted:
    """Which failures somebody wants to see: of a job, of a node, in a phase; None: of any."""

    job: str | None = None
    node: str | None = None
    phase: FailedIn | None = None


async def newest(connection: AsyncConnection, wanted: Wanted, before: int | None, limit: int) -> Sequence[RowMapping]:
    """Rows, newest first, with an id below `before`."""
    query = select(failures).order_by(failures.c.id.desc()).limit(limit)
    for name, value in vars(wanted).items():
        if value is not None:
            query = query.where(failures.c[name] == value)
    if before is not None:
        query = query.where(failures.c.id < before)
    return (await connection.execute(query)).mappings().all()
