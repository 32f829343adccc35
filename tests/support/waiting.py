"""Waiting for a condition of which no event tells. The limit is only against hanging."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0


def until(what: str, found: Callable[[], T], patience_s: float = PATIENCE_S, every_s: float = 0.01) -> T:
    """Wait until `found()` is true, and return it. Fails with `what` when that takes too long."""
    deadline = time.monotonic() + patience_s
    while not (value := found()):
        assert time.monotonic() < deadline, f"waited {patience_s:g} s in vain: {what}"
        time.sleep(every_s)
    return value


async def until_async(what: str, found: Callable[[], object], every_s: float = 0.01) -> None:
    """Wait until `found()` is true, and let the event loop run meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s in vain: {what}"
        await asyncio.sleep(every_s)


def pause(seconds: float = 0.05) -> None:
    """Let a moment pass, to show that something does not happen. It may miss a fault; it cannot fail by chance."""
    time.sleep(seconds)


async def pause_async(seconds: float = 0.05) -> None:
    """Let a moment pass in the event loop, to show that something does not happen."""
    await asyncio.sleep(seconds)
