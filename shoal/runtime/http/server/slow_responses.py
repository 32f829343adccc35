"""Slow receivers' signs of life: a node that takes bytes of an answer is there, though it sends nothing.

A whole model may lie in the kernel's buffers when the application has written it. So the kernel is asked for the
acknowledged bytes; on systems other than Linux, the transport for the bytes that it still holds. In both cases the
other side is the next machine: a proxy hides the node behind it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Callable

WATCHED_BYTES = 8 * 1024
"""A shorter answer is not watched: at 1 kB/s it crosses within about half of the default lease."""

TICK_S = 1.0

_INFO = struct.Struct("=24xI92xQ16xI")
"""Fields of Linux's `tcp_info`: packets under way, bytes acknowledged, bytes that were not sent yet."""


class Delivery:
    """Watchdog of a connection's answers, which calls `heard` while the other side takes them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, silence_s: float) -> None:
        self._loop, self._transport, self._tick_s = loop, transport, min(TICK_S, silence_s / 4)
        self._heard: Callable[[], None] | None = None
        self._taken = 0
        self._timer: asyncio.TimerHandle | None = None

    def monitor(self, heard: Callable[[], None]) -> None:
        """Watch an answer again and again, until nothing of it is left here."""
        self._heard = heard
        if self._timer is None:
            self._taken, _ = self._look()
            self._timer = self._loop.call_later(self._tick_s, self._tick)

    def stop(self) -> None:
        """Stop: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        before = self._taken
        self._taken, left = self._look()
        if self._taken != before and self._heard is not None:
            self._heard()
        if left:
            self._timer = self._loop.call_later(self._tick_s, self._tick)

    def _look(self) -> tuple[int, int]:
        """Return (a number that changes when the other side takes something, bytes in flight)."""
        held, info = self._transport.get_write_buffer_size(), _tcp_info(self._transport)
        if len(info) < _INFO.size:
            return -held, held
        packets, acknowledged, unsent = _INFO.unpack(info)
        return acknowledged, held + packets + unsent


def _tcp_info(transport: asyncio.Transport) -> bytes:
    """Return the kernel's TCP_INFO of a connection; b"" if it has none."""
    if sys.platform != "linux":
        return b""
    try:
        info: bytes = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except OSError:  # it is closed, as the protocol is about to hear
        return b""
    return info
