"""Byte counts, log lines and nodes' system metrics on their way to the database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection

from shoal.core.errors import StorageFailed
from shoal_coordinator.storage.repeated_errors import RepeatedErrors
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry import traffic, traffic_buckets
from shoal_coordinator.telemetry.event_bus import EventBus, Item
from shoal_coordinator.telemetry.log_store import LogStore
from shoal_coordinator.telemetry.system_metrics import SystemMetrics
from shoal_coordinator.telemetry.traffic import TrafficCounter

LOGS_S = 1.0


class TelemetryWriter:
    """Background writer of counts and log lines. `flush_s`: interval of the counts."""

    def __init__(
        self,
        database: Database,
        traffic: TrafficCounter,
        log_store: LogStore,
        system: SystemMetrics,
        event_bus: EventBus,
        flush_s: float,
    ) -> None:
        self._database, self._traffic, self._log_store, self._event_bus = database, traffic, log_store, event_bus
        self._system, self._flush_s = system, flush_s

    async def run(self) -> None:
        """Run until cancelled. Failed writes of counts are retried, those of log lines are lost."""
        await asyncio.gather(
            _write_forever(self.write_counts, self._flush_s, "byte counts not written; trying again"),
            _write_forever(self.flush_logs, LOGS_S, "log lines not written"),
        )

    async def write_counts(self) -> None:
        """Write the byte counts so far down, so that the database answers with all of them."""
        rows, marks = self._traffic.take(), self._traffic.take_marks()
        try:
            await self._database.write(partial(_add_counts, rows=rows, marks=marks))
        except Exception:
            self._traffic.put_back(rows, marks)
            raise

    async def flush_logs(self) -> None:
        """Write down what waits, and tell those who follow it; on return, all that was taken before is written."""
        async with self._log_store.writing:
            if samples := self._system.gather():
                await self._database.write(partial(self._system.write, rows=samples))
            rows = self._log_store.gather()
            if not rows:
                return
            flushed = await self._database.write(partial(self._log_store.write, rows=rows))
            for job in flushed.jobs:
                self._event_bus.publish(Item("logs", job, {"last": flushed.last}))


async def _write_forever(write: Callable[[], Awaitable[None]], interval_s: float, failure: str) -> None:
    failing = RepeatedErrors(failure)
    while True:
        await asyncio.sleep(interval_s)
        try:
            await write()
            failing.worked()
        except StorageFailed as error:
            failing.failed(error)


def _add_counts(connection: Connection, rows: list[dict[str, Any]], marks: list[dict[str, Any]]) -> None:
    """Add the counted bytes by job and by time."""
    traffic.add_rows(connection, rows, marks)
    traffic_buckets.add(connection, rows, time.time())
