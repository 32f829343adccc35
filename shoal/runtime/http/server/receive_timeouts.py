"""Timeouts for slow requests. A timer that restarts at each byte can be held up for ever by one byte a second, so a
head must be complete by a deadline, and a body must arrive at a minimum rate."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

TICK_S = 1.0


class ReceiveTimeouts(NamedTuple):
    """Timeouts and rates of requests."""

    head_s: int
    """Seconds for a head to arrive."""
    grace_s: int
    """Seconds after which a body must have come at `bytes_per_s_min` on average."""
    bytes_per_s_min: int


class FlowControl(Protocol):
    """Interface: whether the server itself has stopped reading."""

    read_paused: bool


class WatchedConnection(Protocol):
    """Interface of a watched connection, uvicorn's protocol."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    @property
    def flow(self) -> FlowControl: ...


class ReceiveWatchdog:
    """Watchdog of one connection, which closes it when a request comes too slowly."""

    def __init__(self, patience: ReceiveTimeouts, connection: WatchedConnection) -> None:
        self._patience, self._connection = patience, connection
        self._ticks, self._received, self._has_head = 0, 0, False
        self._body_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def watching(self) -> bool:
        """Return whether data is expected."""
        return self._timer is not None

    def start(self) -> None:
        """Expect a head."""
        self._ticks, self._received, self._has_head = 0, 0, False
        self._timer = self._connection.loop.call_later(TICK_S, self._tick)

    def came(self, count: int) -> None:
        """Count received bytes."""
        self._received += count

    def head_is_complete(self) -> None:
        """Expect the body, if there is one."""
        self._ticks, self._received, self._has_head, self._body_s = 0, 0, True, None

    def within(self, seconds: float) -> None:
        """Wait no longer than this for the whole of the body that is coming, however fast it comes."""
        self._body_s = seconds

    def stop(self) -> None:
        """Expect nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._connection.loop.call_later(TICK_S, self._tick)
        if self._connection.flow.read_paused:
            return
        self._ticks += 1
        if self._is_too_slow():
            self.stop()
            self._connection.transport.close()

    def _is_too_slow(self) -> bool:
        if not self._has_head:
            return self._ticks >= self._patience.head_s
        if self._body_s is not None and self._ticks >= self._body_s:
            return True
        due = self._patience.bytes_per_s_min * self._ticks
        return self._ticks >= self._patience.grace_s and self._received < due
