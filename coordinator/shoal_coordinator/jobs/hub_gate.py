"""Access to a job's hub: who may read it, and when."""

from __future__ import annotations

import asyncio
import time

import structlog

from shoal.core.errors import StorageFailed
from shoal.core.server.hub import Hub
from shoal_coordinator.nodes.wakeups import Wakeups

log = structlog.get_logger()

SETTLE_S = 5.0
"""Seconds for which a reader waits for a hub that is being restored. Readers wait for a busy hub without limit."""

ENDED = ("done", "stopped")


class JobClock:
    """The clock of a job: it runs while the coordinator does, and never jumps."""

    def __init__(self) -> None:
        self._base, self._zero = 0.0, time.monotonic()
        self.alarm: float | None = None
        """Time of the hub's next timer, on this clock."""

    def now(self) -> float:
        """Return the time in seconds."""
        return self._base + time.monotonic() - self._zero

    def set(self, now: float) -> None:
        """Set the time, after the hub was restored."""
        self._base, self._zero = now, time.monotonic()

    def wake_by(self, at: float) -> None:
        """Move the alarm forward to this time, unless it is earlier."""
        self.alarm = at if self.alarm is None else min(self.alarm, at)


class HubGate:
    """Gate of a job's hub: open while the hub agrees with the journal and no event is in progress.

    While the gate is closed, the hub's state may be rolled back, so no response may depend on it.
    """

    def __init__(self, job: str, hub: Hub, wakeups: Wakeups) -> None:
        self.hub, self._job, self._wakeups = hub, job, wakeups
        self._consistent = asyncio.Event()
        self._not_busy = asyncio.Event()  # set while no event is half-way through: consistent, or being restored
        self._waiting_nodes: set[str] = set()  # nodes whose polls found the gate closed
        self.started = asyncio.Event()
        """Set when the job has started, or is in trouble."""
        self.is_restoring = True
        self.trouble = ""
        self.has_ended, self.term, self.incarnation = False, 0, 0  # when the gate was open last

    def close(self) -> None:
        """Close the gate before events are fed to the hub."""
        self._consistent.clear()
        self._not_busy.clear()

    def open(self) -> None:
        """Open the gate, and wake the nodes that found it closed."""
        hub = self.hub
        self.has_ended, self.term, self.incarnation = hub.progress.phase in ENDED, hub.tasks.term, hub.tasks.incarnation
        self._consistent.set()
        self._not_busy.set()
        for node in self._waiting_nodes:
            self._wakeups[node].set()
        self._waiting_nodes.clear()

    def begin_restoring(self) -> None:
        """Keep the gate closed until `replace`."""
        self.is_restoring = True
        self._not_busy.set()

    def replace(self, hub: Hub) -> None:
        """Replace the hub by one that was restored. The gate is still closed."""
        self.hub, self.trouble, self.is_restoring = hub, "", False

    def is_consistent(self, node: str) -> bool:
        """Return whether the gate is open; if not, the node is woken when it opens."""
        if not self._consistent.is_set():
            self._waiting_nodes.add(node)
        return self._consistent.is_set()

    async def wait_consistent(self) -> None:
        """Wait until the gate is open. Raises `StorageFailed` if the hub is being restored for `SETTLE_S`."""
        while not self._consistent.is_set():
            await (self._wait_restored() if self.is_restoring else self._not_busy.wait())

    async def _wait_restored(self) -> None:
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._consistent.wait()
        except TimeoutError:
            if self.is_restoring:
                raise self.unavailable() from None

    def unavailable(self) -> StorageFailed:
        """Return the error of requests that cannot wait longer for the hub."""
        return StorageFailed(f"job {self._job} is being restored: {self.trouble}", hint="send again in a moment")

    def report_trouble(self, text: str) -> None:
        """Show a problem to people. A start does not wait until it is over."""
        if text != self.trouble:
            log.error("job in trouble", job=self._job, error=text)
        self.trouble = text
        self.started.set()
