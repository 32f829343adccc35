"""Retention: deletes updates after their fold, models that are neither new, best, promoted nor checkpoints, and
unreferenced files.

A blob is deleted only when the snapshot that makes it superfluous is durable, and when no hub, task or request
needs it: blobs are named by content, so two rounds may share one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol

import structlog
from sqlalchemy import Connection, select

from shoal.core.errors import StorageFailed
from shoal.core.protocol.machine import ModelVersion
from shoal.runtime.blob_files import FileBlobs
from shoal_coordinator.models import version_history
from shoal_coordinator.models.rollup import VersionRollup
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.tables import jobs
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.job_events import trim_feed
from shoal_coordinator.telemetry.report_store import trim_reports
from shoal_coordinator.telemetry.traffic import TrafficCounter

log = structlog.get_logger()

ORPHAN_AGE_S = 3600.0
"""Seconds that a file without a reference is kept: its report may still be on the way."""

PARTIAL_AGE_S = 86400.0
"""Seconds that an interrupted upload is kept."""

AT_ONCE = 16
"""Blobs deleted without a pause in which requests are answered: each may wait for the disk."""

TRIM_EVERY = 64
"""Versions after which a job's rows are trimmed."""

TIDY_S = 600.0
"""Interval in seconds of the search for unreferenced files."""


class BlobsInUse(Protocol):
    """The blobs of a job, and which of them it needs (`jobs.blob_use.BlobUse`)."""

    job: str
    blobs: FileBlobs

    @property
    def is_known(self) -> bool:
        """Return False while the hub is restored."""
        ...

    def may_delete(self) -> bool:
        """Return whether no other coordinator can run the job now."""
        ...

    def digests(self) -> set[str]:
        """Return the digests of the blobs that the job needs."""
        ...


class Retention:
    """Deletion of blobs and rows after versions, at the start, and periodically."""

    def __init__(self, database: Database, settings: Settings, traffic: TrafficCounter) -> None:
        self._database, self._settings, self._traffic = database, settings, traffic
        self._rollup = VersionRollup(settings.rounds_kept)
        self._due = time.monotonic() + TIDY_S
        self._models: dict[str, set[str]] = {}  # by job, those that the last clearing away has left
        self.lock = asyncio.Lock()
        """Held while models are deleted. Its holder may rely on the files that exist."""

    async def sweep_closed(self, use: BlobsInUse, closed: Sequence[ModelVersion]) -> None:
        """Delete after these versions have closed and their snapshot is durable."""
        async with self.lock:
            await self._sweep_closed(use, closed)

    async def _sweep_closed(self, use: BlobsInUse, closed: Sequence[ModelVersion]) -> None:
        name = use.job
        refs = [ref for version in closed for ref in (version.model, version.algorithm_state) if ref is not None]
        made, known = {ref.digest for ref in refs}, self._models.get(name)
        doomed = made | (await self._models_here(use) if known is None else known)
        if not self._settings.keep_updates:
            doomed |= {digest for version in closed for _, _, _, digest in version.reports}
            doomed &= set(await asyncio.to_thread(use.blobs.digests))  # small updates never had files
        keep, checkpoints = await self._database.write(lambda c: self._to_keep(c, name, doomed))
        left = list(doomed - keep - checkpoints)
        for place in range(0, len(left), AT_ONCE):
            if not use.may_delete():  # another does now, and perhaps needs what this one does not know of
                return
            for digest in set(left[place : place + AT_ONCE]) - use.digests():
                use.blobs.delete(digest)  # no await since `digests`: a request could begin to need one
            await asyncio.sleep(0)  # requests come first
        self._models[name] = keep | (doomed & use.digests())
        await self._reap(use.blobs)
        if closed[-1].number // TRIM_EVERY > (closed[0].number - 1) // TRIM_EVERY:
            await self._trim(name)

    async def _trim(self, job: str) -> None:
        """Forget the oldest rows of a job, and roll up its old rounds."""
        await self._database.write(lambda c: trim_feed(c, job, self._settings.events_kept))
        await self._database.write(lambda c: trim_reports(c, job, self._settings.reports_kept))
        self._traffic.roll_up(job, await self._database.write(lambda c: self._rollup.run(c, job)))

    async def _models_here(self, use: BlobsInUse) -> set[str]:
        """Return the job's models that have files: what an earlier process left."""
        here = await asyncio.to_thread(use.blobs.digests)
        found = await self._database.write(lambda c: version_history.models_among(c, use.job, here))
        return set(found.values())

    def forget(self, job: str) -> None:
        """Forget a job that was removed."""
        self._models.pop(job, None)

    async def remove_partials(self, blobs: FileBlobs) -> None:
        """Remove incomplete files of a crash at the start; disk errors are ignored."""
        try:
            await asyncio.to_thread(blobs.sweep)
        except StorageFailed as error:
            log.error("files not deleted", folder=str(blobs.folder), error=error.message)

    async def sweep_starts(self, starts: FileBlobs) -> None:
        """Delete old start models and base models, because jobs have copies of their own."""
        await asyncio.to_thread(starts.partials.drop, PARTIAL_AGE_S)
        for digest in await asyncio.to_thread(starts.old, ORPHAN_AGE_S):
            starts.delete(digest)
        await self._reap(starts)

    async def _reap(self, blobs: FileBlobs) -> None:
        """Delete from the store what was deleted here. After a failure the next call does it."""
        try:
            await asyncio.to_thread(blobs.reap)
        except StorageFailed as error:
            log.error("blobs not deleted", store=str(blobs.folder), error=error.message)

    async def sweep_periodically(
        self, uses: Sequence[BlobsInUse], others: Collection[str], starts: FileBlobs | None = None
    ) -> None:
        """Periodically delete unreferenced blobs, such as updates that came too late to count.

        `others`: jobs of other coordinators, which roll up their rounds themselves; only their counts are updated
        here. `starts`: the blobs for new jobs, if they are this coordinator's to delete.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + TIDY_S
        for use in uses:
            await self._trim(use.job)  # a job that stands still closes no version, which would trim it
            await self.sweep_orphans(use)
        if starts is not None:
            await self.sweep_starts(starts)
        for job in others:
            self._traffic.roll_up(job, await self._database.write(partial(version_history.version_numbers, job=job)))

    async def sweep_orphans(self, use: BlobsInUse) -> None:
        """Remove what nothing names from one job's folder."""
        if not use.is_known:  # it is not known yet which reports of the journal it will fold
            return
        async with self.lock:
            await self._sweep_orphans(use)

    async def _sweep_orphans(self, use: BlobsInUse) -> None:
        await asyncio.to_thread(use.blobs.partials.drop, PARTIAL_AGE_S)
        old = await asyncio.to_thread(use.blobs.old, ORPHAN_AGE_S)
        doomed = await self._database.write(lambda c: self._unnamed(c, use.job, old))
        for digest in doomed - use.digests() if use.may_delete() else ():  # no await from here on, as above
            use.blobs.delete(digest)
        await self._reap(use.blobs)
        if doomed:
            log.info("cleared away", job=use.job, blobs=len(doomed))

    def _unnamed(self, connection: Connection, job: str, old: set[str]) -> set[str]:
        """Return the old files that may be deleted: all except models and checkpoints that are kept, and updates if
        those are."""
        keep, checkpoints = self._to_keep(connection, job, old)
        named = keep | checkpoints
        start = connection.execute(select(jobs.c.start).where(jobs.c.name == job)).scalar()
        if start is not None:
            named |= {one["digest"] for one in (start, start.get("base", {})) if "digest" in one}
        if self._settings.keep_updates:
            old = set(version_history.models_among(connection, job, old).values())
        return old - named

    def _to_keep(self, connection: Connection, job: str, digests: set[str]) -> tuple[set[str], set[str]]:
        """Return a job's models to keep, and those of the digests that are checkpoints."""
        keep = version_history.models_to_keep(connection, job, self._settings.models_kept)
        return keep, version_history.checkpoints_among(connection, job, digests)
