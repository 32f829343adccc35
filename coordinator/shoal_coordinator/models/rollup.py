"""Rolling up of old rounds: a job's rows stop growing, and its sums stay exact.

The newest `rounds_kept` versions of a job are kept one by one. Every second of the older ones stays, later every
fourth, and so on, so there are never more than about twice as many rows. The first, the best, checkpoints and the
versions that labels name stay too. Bytes counted under a deleted version are added to those of the last version before
it that stays: what had crossed the wire when a version was made is exact for each version that is still there, and so
are all sums.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, exists, func, select

from shoal_coordinator.models.version_history import best_of, checkpoint_every, labeled
from shoal_coordinator.storage.dialects import insert, whole_sum
from shoal_coordinator.storage.tables import traffic, versions

OVERLAP = 1024
"""Rounds that are processed again: bytes may be counted under a version that was deleted a while ago."""

_COUNTS = ("requests", "head_bytes", "body_bytes")
_KEYS = ("node", "kind", "direction")


class VersionRollup:
    """The roll-up of jobs' rounds. It remembers its last pass, so that the next one reads only newer rounds."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._done: dict[str, tuple[int, int]] = {}  # by job: the step, and the version up to which it has been applied

    def run(self, connection: Connection, job: str) -> list[int]:
        """Roll up what has become old; return the versions that stay in the range looked at, at least as far as that.

        Empty when nothing was old enough.
        """
        span = select(func.min(versions.c.number), func.max(versions.c.number)).where(versions.c.job == job)
        first, last = connection.execute(span).one()
        end = (last or 0) - self._kept
        step = _step((end - (first or 0)) / self._kept)
        if step == 1:
            return []
        done_step, done = self._done.get(job, (0, 0))
        begin = max(first, done - OVERLAP) if step == done_step else first
        _thin(connection, job, begin, end, step)
        _move_bytes(connection, job, begin, end)
        self._done[job] = step, end
        lowest = select(func.max(versions.c.number)).where(versions.c.job == job, versions.c.number <= begin)
        here = (versions.c.job == job, versions.c.number.between(lowest.scalar_subquery(), end))
        return list(connection.execute(select(versions.c.number).where(*here).order_by(versions.c.number)).scalars())


def _step(ratio: float) -> int:
    """Return the smallest power of two that is not less."""
    step = 1
    while step < ratio:
        step *= 2
    return step


def _thin(connection: Connection, job: str, begin: int, end: int, step: int) -> None:
    """Delete the versions from `begin` to before `end` that are not kept."""
    first = select(func.min(versions.c.number)).where(versions.c.job == job)
    best = connection.execute(best_of(job, versions.c.number)).scalar()
    stay = [*connection.execute(first).scalars(), *labeled(connection, job), *([] if best is None else [best])]
    old = (versions.c.job == job, versions.c.number >= begin, versions.c.number < end)
    gone = [versions.c.number % step != 0, versions.c.number.not_in(stay)]
    if every := checkpoint_every(connection, job):
        gone.append(versions.c.number % every != 0)
    connection.execute(delete(versions).where(*old, *gone))


def _move_bytes(connection: Connection, job: str, begin: int, end: int) -> None:
    """Add the bytes of deleted versions to the last remaining version before them."""
    here = versions.alias()
    is_there = exists().where(here.c.job == traffic.c.job, here.c.number == traffic.c.version)
    orphans = (traffic.c.job == job, traffic.c.version >= begin, traffic.c.version < end, ~is_there)
    before = select(func.max(here.c.number)).where(here.c.job == traffic.c.job, here.c.number < traffic.c.version)
    moved = select(
        traffic.c.job,
        before.scalar_subquery().label("version"),
        *(traffic.c[name] for name in (*_KEYS, *_COUNTS)),
    ).where(*orphans)
    each = moved.subquery()
    keys: list[Any] = [each.c[name] for name in ("job", "version", *_KEYS)]
    sums = select(*keys, *(whole_sum(each.c[name]).label(name) for name in _COUNTS)).where(each.c.version.is_not(None))
    adding = insert(traffic).from_select(["job", "version", *_KEYS, *_COUNTS], sums.group_by(*keys))
    connection.execute(
        adding.on_conflict_do_update(
            index_elements=list(traffic.primary_key.columns),
            set_={name: traffic.c[name] + adding.excluded[name] for name in _COUNTS},
        )
    )
    connection.execute(delete(traffic).where(*orphans))
