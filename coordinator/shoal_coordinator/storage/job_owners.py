"""The leader's changes of job owners (`shoal.core.cluster.job_assignment`), in transactions that only it can commit."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, select, update

from shoal.core.cluster.job_assignment import LEADER
from shoal_coordinator.storage.backends import DB_CLOCK, EVICT
from shoal_coordinator.storage.lease_store import FOLLOWER
from shoal_coordinator.storage.tables import jobs, leases


def take_over(connection: Connection, follower: str) -> bool:
    """End a follower's term and make its jobs the leader's; return whether that was possible.

    It is not while the follower's lease lasts, or while it has an open transaction: that is terminated, so that the
    next attempt succeeds.
    """
    of_name = leases.c.name == FOLLOWER + follower
    over = connection.execute(select(leases.c.until < DB_CLOCK).where(of_name)).scalar()
    if over is False:
        return False
    free = select(leases.c.term).where(of_name, leases.c.until < DB_CLOCK).with_for_update(skip_locked=True)
    if over and connection.execute(free).first() is None:
        connection.execute(EVICT, {"name": FOLLOWER + follower, "holder": ""})
        return False
    _retire(connection, follower)
    return True


def absorb(connection: Connection, name: str) -> None:
    """Take over one's own jobs: this follower has become the leader."""
    _retire(connection, name)


def _retire(connection: Connection, follower: str) -> None:
    ended = {"term": leases.c.term + 1, "until": 0.0, "announced_term": 0, "address": "", "secret": ""}
    connection.execute(update(leases).where(leases.c.name == FOLLOWER + follower).values(ended))
    connection.execute(update(jobs).where(jobs.c.owner == follower).values(owner=LEADER))


def assign(connection: Connection, job: str, follower: str) -> None:
    """Let a follower own one of the leader's jobs."""
    mine = update(jobs).where(jobs.c.name == job, jobs.c.owner == LEADER)
    connection.execute(mine.values(owner=follower))


def released(connection: Connection, names: set[str]) -> list[Row[Any]]:
    """Return those of these jobs that now belong to the leader."""
    query = select(jobs).where(jobs.c.name.in_(names), jobs.c.owner == LEADER)
    return list(connection.execute(query.order_by(jobs.c.created_at)).all())
