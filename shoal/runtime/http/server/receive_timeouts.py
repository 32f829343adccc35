"""How long a server waits for what comes slowly. A timer that starts anew at each byte is held up for ever by one byte
a second, so a head must be complete by a deadline, and a body must come at some speed on average.

Seconds are counted as ticks of our own loop, and not while reading is paused: a process that is held up itself must not
blame others.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

TICK_S = 1.0


class Patience(NamedTuple):
    """What is waited for."""

    head_s: int
    """Seconds for a head to arrive."""
    grace_s: int
    """Seconds after which a body must have come at `bytes_per_s_min` on average."""
    bytes_per_s_min: int


class Flow(Protocol):
    """Whether the server itself has stopped reading."""

    read_paused: bool


class Connection(Protocol):
    """What is watched: uvicorn's protocol of one connection."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    @property
    def flow(self) -> Flow: ...


class Receipt:
    """Watches one connection while something is to come on it, and hangs up when that comes too slowly."""

    def __init__(self, patience: Patience, connection: Connection) -> None:
        self._patience, self._connection = patience, connection
        self._ticks, self._received, self._has_head = 0, 0, False
        self._body_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def watching(self) -> bool:
        """Whether something is to come."""
        return self._timer is not None

    def start(self) -> None:
        """A head is to come."""
        self._ticks, self._received, self._has_head = 0, 0, False
        self._timer = self._connection.loop.call_later(TICK_S, self._tick)

    def came(self, count: int) -> None:
        """So many bytes have come."""
        self._received += count

    def head_is_complete(self) -> None:
        """A body is to come, if any."""
        self._ticks, self._received, self._has_head, self._body_s = 0, 0, True, None

    def within(self, seconds: float) -> None:
        """Wait no longer than this for the whole of the body that is coming, however fast it comes."""
        self._body_s = seconds

    def stop(self) -> None:
        """Nothing is to come."""
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
