"""The rows that `shoal.core.owners` speaks of, as the lead changes them: each in a transaction that only a lead can
commit."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, select, update

from shoal.core.owners import LEAD
from shoal_coordinator.places import DB_CLOCK, EVICT
from shoal_coordinator.seat import DEPUTY
from shoal_coordinator.tables import jobs, leases


def take_over(connection: Connection, deputy: str) -> bool:
    """End a deputy's epoch, and make its jobs the lead's; False: its lease has not ended, or it is in the midst of a
    transaction. Then that is ended, without waiting for it, and the next attempt succeeds."""
    of_name = leases.c.name == DEPUTY + deputy
    over = connection.execute(select(leases.c.until < DB_CLOCK).where(of_name)).scalar()
    if over is False:
        return False
    free = select(leases.c.epoch).where(of_name, leases.c.until < DB_CLOCK).with_for_update(skip_locked=True)
    if over and connection.execute(free).first() is None:
        connection.execute(EVICT, {"name": DEPUTY + deputy, "holder": ""})
        return False
    _retire(connection, deputy)
    return True


def bring(connection: Connection, name: str) -> None:
    """This one was a deputy, and is the lead now: what it owned comes with it."""
    _retire(connection, name)


def _retire(connection: Connection, deputy: str) -> None:
    ended = {"epoch": leases.c.epoch + 1, "until": 0.0, "speaks": 0, "address": "", "secret": ""}
    connection.execute(update(leases).where(leases.c.name == DEPUTY + deputy).values(ended))
    connection.execute(update(jobs).where(jobs.c.owner == deputy).values(owner=LEAD))


def give(connection: Connection, job: str, deputy: str) -> None:
    """Let a deputy own one of the lead's jobs."""
    mine = update(jobs).where(jobs.c.name == job, jobs.c.owner == LEAD)
    connection.execute(mine.values(owner=deputy))


def freed(connection: Connection, names: set[str]) -> list[Row[Any]]:
    """Of these jobs, those that are the lead's now."""
    query = select(jobs).where(jobs.c.name.in_(names), jobs.c.owner == LEAD)
    return list(connection.execute(query.order_by(jobs.c.created_at)).all())
