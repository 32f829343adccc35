"""Reader of closed model versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Select, select

from shoal.core.errors import Refused
from shoal_coordinator.storage.tables import versions
from shoal_coordinator.storage.writer import Database


class VersionReader:
    """Reader of rows of versions.

    Args:
        wait_projected: waits until the rows of a job's versions are written; raises `Refused` for an unknown job.
    """

    def __init__(self, database: Database, wait_projected: Callable[[str], Awaitable[bool]]) -> None:
        self._database, self._wait_projected = database, wait_projected

    async def version_row(self, job: str, number: int) -> Any:
        """Return the row of a version. Raises `Refused` (404) if it does not exist."""
        row = await self.first_version(job, select(versions).where(versions.c.number == number))
        if row is None:
            hint = "see GET …/versions; only some old rounds are kept"
            raise Refused(f"job {job} has no version {number}", code="model.unknown", hint=hint)
        return row

    async def first_version(self, job: str, query: Select[Any]) -> Any:
        """Return the first row of a query on a job's versions, or None.

        A version may be shown before its row is written: if no row is found, wait for that and query again.
        """
        mine = query.where(versions.c.job == job).limit(1)
        row = await self._first(mine)
        if row is None and await self._wait_projected(job):
            row = await self._first(mine)
        return row

    async def _first(self, query: Select[Any]) -> Any:
        async with self._database.reader.connect() as connection:
            return (await connection.execute(query)).first()
