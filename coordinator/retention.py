"""What is cleared away: updates after their fold, models beyond the newest, and files that nothing names.

A body goes only when the snapshot that makes it superfluous is durable, and when no hub, order or request needs it:
bodies are named by content, so two rounds may share one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Connection, select

from coordinator import describe
from coordinator.database import Database
from coordinator.driver import Driver
from coordinator.journal import trim_feed
from coordinator.settings import Settings
from coordinator.tables import jobs, versions
from shoal.core.machine import Version
from shoal.runtime.store import FileBodies

log = structlog.get_logger()

ORPHAN_AGE_S = 3600.0
"""A file that nothing names is kept for so long: its report may still be on the way."""

PARTIAL_AGE_S = 86400.0
"""Uploads that broke off are kept for so long."""


class Retention:
    """Clears away after versions, and once at the start."""

    def __init__(self, database: Database, bodies: FileBodies, settings: Settings) -> None:
        self._database, self._bodies, self._settings = database, bodies, settings

    async def after(self, driver: Driver, closed: Sequence[Version]) -> None:
        """These versions have closed, and their snapshot is durable."""
        name = driver.name
        folded = {digest for version in closed for _, _, _, digest in version.reports}
        old = await self._database.write(lambda c: self._old_models(c, name))
        doomed = (set() if self._settings.keep_updates else folded) | old
        used = driver.in_use()
        for digest in doomed - used:
            await asyncio.to_thread(self._bodies.delete, digest)
        if closed[-1].number % 64 == 0:
            await self._database.write(lambda c: trim_feed(c, name, self._settings.feed_kept))

    def _old_models(self, connection: Connection, job: str) -> set[str]:
        """Models that are neither among the newest nor the best of their job."""
        columns = (versions.c.number, versions.c.digest, versions.c.metrics)
        rows = connection.execute(select(*columns).where(versions.c.job == job).order_by(versions.c.number)).all()
        kept = self._kept(rows)
        return {row.digest for row in rows} - kept

    def _kept(self, rows: Sequence[Any]) -> set[str]:
        scored = [(accuracy, row.digest) for row in rows if (accuracy := describe.accuracy_of(row.metrics)) is not None]
        best = {max(scored)[1]} if scored else set()
        return {row.digest for row in rows[-self._settings.models_kept :]} | best

    async def sweep(self, drivers: Iterable[Driver]) -> None:
        """At the start: remove files that nothing names and that are old enough."""
        named = await self._database.write(self._named)
        for driver in drivers:
            named |= driver.in_use()
        await asyncio.to_thread(self._bodies.sweep)
        await asyncio.to_thread(self._bodies.drop_partials, PARTIAL_AGE_S)
        removed = await asyncio.to_thread(self._remove_orphans, named)
        if removed:
            log.info("cleared away", bodies=removed)

    def _named(self, connection: Connection) -> set[str]:
        named: set[str] = set()
        for name, start in connection.execute(select(jobs.c.name, jobs.c.start)).all():
            rows = connection.execute(
                select(versions.c.number, versions.c.digest, versions.c.metrics, versions.c.reports)
                .where(versions.c.job == name)
                .order_by(versions.c.number)
            ).all()
            named |= self._kept(rows) | ({start["digest"]} if start else set())
            if self._settings.keep_updates:
                named |= {report[3] for row in rows for report in row.reports}
        return named

    def _remove_orphans(self, named: set[str]) -> int:
        before, removed = time.time() - ORPHAN_AGE_S, 0
        for digest in self._bodies.digests():
            path: Path = self._bodies.path(digest)
            if digest not in named and path.exists() and path.stat().st_mtime < before:
                self._bodies.delete(digest)
                removed += 1
        return removed
