"""Deletion of a job that has ended.

Blobs are deleted first, then the rows in one transaction. A crash in between leaves a job without models, which can be
removed again; it never leaves blobs without a job.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence

from sqlalchemy import Connection, delete

from shoal.core.errors import Refused
from shoal.runtime.blob_files import FileBlobs
from shoal_coordinator.jobs.job_registry import JobRecord
from shoal_coordinator.storage import tables
from shoal_coordinator.storage.writer import Database

ABOUT_A_JOB = (
    tables.updates,
    tables.journal,
    tables.snapshots,
    tables.versions,
    tables.job_events,
    tables.reports,
    tables.failures,
    tables.logs,
    tables.alerts,
    tables.trust_documents,
    tables.traffic,
    tables.gossip_bytes,
)


async def delete_job(
    record: JobRecord, blobs: FileBlobs, database: Database, flush: Sequence[Callable[[], Awaitable[None]]]
) -> None:
    """Delete the blobs and rows of a job that has ended. `flush` writes what is still in memory about it.

    Raises `Refused` (`job.active`) and `StorageFailed`; then call it again.
    """
    name = record.spec.name
    if record.ended_at is None:
        raise Refused(f"job {name} has not ended", code="job.active", hint=f"stop it first: shoal jobs stop {name}")
    if record.runner is not None:
        runner, record.runner = record.runner, None
        await runner.stop()
    await asyncio.to_thread(_delete_blobs, blobs)
    for write in flush:
        await write()
    await database.write(lambda c: _delete_rows(c, name))


def _delete_blobs(blobs: FileBlobs) -> None:
    blobs.partials.drop(0.0)
    for digest in blobs.digests():
        blobs.delete(digest)
    blobs.reap()
    shutil.rmtree(blobs.folder, ignore_errors=True)


def _delete_rows(connection: Connection, job: str) -> None:
    for table in ABOUT_A_JOB:
        connection.execute(delete(table).where(table.c.job == job))
    connection.execute(delete(tables.jobs).where(tables.jobs.c.name == job))
