"""Removing a job that has ended: its models and other bodies, and all rows that are about it.

Bodies go first, then the rows in one transaction. A crash in between leaves a job without models, which can be removed
again; there are never bodies that no job owns.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import Connection, delete

from shoal.core.errors import Refused
from shoal.runtime.store import FileBodies
from shoal_coordinator import tables

if TYPE_CHECKING:
    from shoal_coordinator.service import Coordinator

log = structlog.get_logger()

ABOUT_A_JOB = (
    tables.updates,
    tables.events,
    tables.snapshots,
    tables.versions,
    tables.feed,
    tables.reports,
    tables.failures,
    tables.logs,
    tables.alerts,
    tables.papers,
    tables.traffic,
    tables.gossip_bytes,
)


async def remove(coordinator: Coordinator, name: str) -> None:
    """Remove a job for good. Raises `Refused` (`job.unknown`, `job.active`), and `StorageFailed`: then do it again."""
    async with coordinator.retention.clearing:
        record = coordinator.record(name)
        if record.ended_at is None:
            raise Refused(f"job {name} has not ended", code="job.active", hint=f"stop it first: shoal jobs stop {name}")
        if record.driver is not None:
            driver, record.driver = record.driver, None
            await driver.stop()
        await asyncio.to_thread(_delete_bodies, coordinator.bodies_of(name))
        await coordinator.books.flush_logs()
        await coordinator.books.write_counts()
        await coordinator.database.write(lambda c: _delete_rows(c, name))
        del coordinator.records[name]
        coordinator.forget_job(name)
    log.info("job removed", job=name)


def _delete_bodies(bodies: FileBodies) -> None:
    bodies.drop_partials(0.0)
    for digest in bodies.digests():
        bodies.delete(digest)
    bodies.reap()
    shutil.rmtree(bodies.folder, ignore_errors=True)


def _delete_rows(connection: Connection, job: str) -> None:
    for table in ABOUT_A_JOB:
        connection.execute(delete(table).where(table.c.job == job))
    connection.execute(delete(tables.jobs).where(tables.jobs.c.name == job))
