"""What is cleared away: updates after their fold, models that are neither new, nor best, nor promoted, and
files that nothing names.

A body goes only when the snapshot that makes it superfluous is durable, and when no hub, order or request needs it:
bodies are named by content, so two rounds may share one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from functools import partial

import structlog
from sqlalchemy import Connection, select

from shoal.core.errors import StorageFailed
from shoal.core.machine import Version
from shoal.runtime.store import FileBodies
from shoal_coordinator import history
from shoal_coordinator.database import Database
from shoal_coordinator.driver import Driver
from shoal_coordinator.journal import trim_feed
from shoal_coordinator.ledger import Ledger
from shoal_coordinator.reports import trim_reports
from shoal_coordinator.rolling import RollUp
from shoal_coordinator.settings import Settings
from shoal_coordinator.tables import jobs

log = structlog.get_logger()

ORPHAN_AGE_S = 3600.0
"""A file that nothing names is kept for so long: its report may still be on the way."""

PARTIAL_AGE_S = 86400.0
"""Uploads that broke off are kept for so long."""

AT_ONCE = 16
"""Bodies that are deleted in one go: each may wait for the disk, and requests wait for that."""

TRIM_EVERY = 64
"""Versions after which a job's rows are trimmed."""

TIDY_S = 600.0
"""How often what nothing names is looked for."""


class Retention:
    """Clears away after versions, at the start, and now and then."""

    def __init__(self, database: Database, settings: Settings, ledger: Ledger) -> None:
        self._database, self._settings, self._ledger = database, settings, ledger
        self._rolling = RollUp(settings.rounds_kept)
        self._due = time.monotonic() + TIDY_S
        self._models: dict[str, set[str]] = {}  # by job, those that the last clearing away has left
        self.clearing = asyncio.Lock()
        """Held while models go: whoever has it may look whether a file is here, and promise that it stays."""

    async def after(self, driver: Driver, closed: Sequence[Version]) -> None:
        """These versions have closed, and their snapshot is durable."""
        async with self.clearing:
            await self._clear_after(driver, closed)

    async def _clear_after(self, driver: Driver, closed: Sequence[Version]) -> None:
        name = driver.name
        keep = await self._database.write(lambda c: history.models_to_keep(c, name, self._settings.models_kept))
        made, known = {version.model.digest for version in closed}, self._models.get(name)
        doomed = made | (await self._models_here(driver) if known is None else known)
        if not self._settings.keep_updates:
            doomed |= {digest for version in closed for _, _, _, digest in version.reports}
            doomed &= set(await asyncio.to_thread(driver.bodies.digests))  # small updates never had files
        left = list(doomed - keep)
        for place in range(0, len(left), AT_ONCE):
            if not driver.owns:  # another does now, and perhaps needs what this one does not know of
                return
            for digest in set(left[place : place + AT_ONCE]) - driver.in_use():
                driver.bodies.delete(digest)  # no await since `in_use`: a request could begin to need one
            await asyncio.sleep(0)  # requests come first
        self._models[name] = keep | (doomed & driver.in_use())
        await self._reap(driver.bodies)
        if closed[-1].number // TRIM_EVERY > (closed[0].number - 1) // TRIM_EVERY:
            await self._trim(name)

    async def _trim(self, job: str) -> None:
        """Forget the oldest rows of a job, and roll up its old rounds."""
        await self._database.write(lambda c: trim_feed(c, job, self._settings.feed_kept))
        await self._database.write(lambda c: trim_reports(c, job, self._settings.reports_kept))
        self._ledger.roll_up(job, await self._database.write(lambda c: self._rolling.run(c, job)))

    async def _models_here(self, driver: Driver) -> set[str]:
        """Return the job's models that have files: what an earlier process left."""
        here = await asyncio.to_thread(driver.bodies.digests)
        found = await self._database.write(lambda c: history.models_among(c, driver.name, here))
        return set(found.values())

    def forget(self, job: str) -> None:
        """Know nothing of a job that was removed."""
        self._models.pop(job, None)

    async def sweep(self, bodies: FileBodies) -> None:
        """At the start: remove what a crash left half-made. If the disk refuses, that is no reason not to start."""
        try:
            await asyncio.to_thread(bodies.sweep)
        except StorageFailed as error:
            log.error("not cleared away", folder=str(bodies.folder), error=error.message)

    async def sweep_starts(self, starts: FileBodies) -> None:
        """At the start: jobs keep initial models of their own, so that those which came before them are in vain."""
        for digest in await asyncio.to_thread(starts.old, ORPHAN_AGE_S):
            starts.delete(digest)
        await self._reap(starts)

    async def _reap(self, bodies: FileBodies) -> None:
        """Let what was deleted be gone from the store too. If that cannot be now, the next time does it."""
        try:
            await asyncio.to_thread(bodies.reap)
        except StorageFailed as error:
            log.error("not cleared away", store=str(bodies.folder), error=error.message)

    async def tidy(self, drivers: Sequence[Driver], others: Collection[str]) -> None:
        """Now and then: remove what nothing names, such as updates that came too late to count.

        `others`: jobs of other coordinators, which roll up their rounds themselves; the counts here follow.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + TIDY_S
        for driver in drivers:
            await self._trim(driver.name)  # of one that stands still nothing else would: it closes no version
            await self.clear(driver)
        for job in others:
            self._ledger.roll_up(job, await self._database.write(partial(history.numbers, job=job)))

    async def clear(self, driver: Driver) -> None:
        """Remove what nothing names from one job's folder."""
        if driver.restoring:  # nobody knows yet which reports of the journal it will fold
            return
        async with self.clearing:
            await self._clear(driver)

    async def _clear(self, driver: Driver) -> None:
        await asyncio.to_thread(driver.bodies.drop_partials, PARTIAL_AGE_S)
        old = await asyncio.to_thread(driver.bodies.old, ORPHAN_AGE_S)
        doomed = await self._database.write(lambda c: self._unnamed(c, driver.name, old))
        for digest in doomed - driver.in_use() if driver.owns else ():  # no await from here on, as above
            driver.bodies.delete(digest)
        await self._reap(driver.bodies)
        if doomed:
            log.info("cleared away", job=driver.name, bodies=len(doomed))

    def _unnamed(self, connection: Connection, job: str, old: set[str]) -> set[str]:
        """Return those of the old files that may go: all but models that are kept, and updates where those are."""
        named = history.models_to_keep(connection, job, self._settings.models_kept)
        start = connection.execute(select(jobs.c.start).where(jobs.c.name == job)).scalar()
        if start is not None:
            named.add(start["digest"])
        if self._settings.keep_updates:
            old = set(history.models_among(connection, job, old).values())
        return old - named
