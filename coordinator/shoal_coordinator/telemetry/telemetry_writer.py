"""Byte counts, log lines and nodes' system metrics on their way to the database."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from sqlalchemy import Connection

from shoal.core.errors import StorageFailed
from shoal_coordinator import ledger, quarters
from shoal_coordinator.database import Database
from shoal_coordinator.ledger import Ledger
from shoal_coordinator.logbook import Logbook
from shoal_coordinator.repeats import Repeating
from shoal_coordinator.stream import Broadcast, Item
from shoal_coordinator.system_metrics import SystemMetrics

LOGS_S = 1.0


class Books:
    """Writes them down, now and then. `flush_s`: how often the counts."""

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        logbook: Logbook,
        system: SystemMetrics,
        broadcast: Broadcast,
        flush_s: float,
    ) -> None:
        self._database, self._ledger, self._logbook, self._broadcast = database, ledger, logbook, broadcast
        self._system, self._flush_s = system, flush_s

    async def run(self) -> None:
        """Until cancelled. What cannot be written is tried again, or, of the log, lost."""
        await asyncio.gather(self._count(), self._log())

    async def _count(self) -> None:
        failing = Repeating("byte counts not written; trying again")
        while True:
            await asyncio.sleep(self._flush_s)
            try:
                await self.write_counts()
                failing.worked()
            except StorageFailed as error:
                failing.failed(error)

    async def _log(self) -> None:
        failing = Repeating("log lines not written")
        while True:
            await asyncio.sleep(LOGS_S)
            try:
                await self.flush_logs()
                failing.worked()
            except StorageFailed as error:
                failing.failed(error)

    async def write_counts(self) -> None:
        """Write the byte counts so far down, so that the database answers with all of them."""
        rows, marks = self._ledger.take(), self._ledger.take_marks()
        try:
            await self._database.write(partial(_add_counts, rows=rows, marks=marks))
        except Exception:
            self._ledger.put_back(rows, marks)
            raise

    async def flush_logs(self) -> None:
        """Write down what waits, and tell those who follow it; on return, all that was taken before is written."""
        async with self._logbook.writing:
            if samples := self._system.gather():
                await self._database.write(partial(self._system.write, rows=samples))
            rows = self._logbook.gather()
            if not rows:
                return
            flushed = await self._database.write(partial(self._logbook.write, rows=rows))
            for job in flushed.jobs:
                self._broadcast.tell(Item("logs", job, {"last": flushed.last}))


def _add_counts(connection: Connection, rows: list[dict[str, Any]], marks: list[dict[str, Any]]) -> None:
    """What has crossed, by job and by time."""
    ledger.add_rows(connection, rows, marks)
    quarters.add(connection, rows, time.time())
