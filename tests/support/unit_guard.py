"""A guard of the unit tier: a unit test that starts a process, opens a connection or sleeps fails and is told so.

The interpreter's audit events tell of all uses of processes and sockets. Threads that ran before the test began
are left out: they belong to an earlier test.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any

EVENTS = {
    "os.exec": "replaces its process",
    "os.fork": "forks",
    "os.posix_spawn": "starts a process",
    "socket.bind": "binds a socket",
    "socket.connect": "opens a connection",
    "subprocess.Popen": "starts a process",
}
WAITING = "tests.support.waiting"
"""The module whose functions may sleep between two looks at a condition."""


class UnitGuard:
    """The uses of one unit test that its tier forbids. One stands in a process: audit hooks cannot be removed."""

    def __init__(self) -> None:
        self._seen: list[str] | None = None
        self._older: frozenset[int | None] = frozenset()

    def install(self) -> None:
        """Watch this process from now on."""
        sys.addaudithook(self._audit)
        time.sleep = self._sleep
        asyncio.sleep = self._sleep_async  # type: ignore[assignment]

    def begin(self) -> None:
        """Watch a test."""
        alive = frozenset(thread.ident for thread in threading.enumerate())
        self._older, self._seen = alive - {threading.main_thread().ident}, []

    def end(self) -> list[str]:
        """Stop watching; return what the test did that it must not do."""
        seen, self._seen = self._seen, None
        return sorted(set(seen or ()))

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        seen = self._seen
        if seen is not None and event in EVENTS and threading.get_ident() not in self._older:
            seen.append(f"{EVENTS[event]} ({event})")

    def _sleep(self, seconds: float) -> None:
        self._note_sleep(seconds, sys._getframe(1).f_globals.get("__name__", ""))
        REAL_SLEEP(seconds)

    def _sleep_async(self, delay: float, result: Any = None) -> Coroutine[Any, Any, Any]:
        self._note_sleep(delay, sys._getframe(1).f_globals.get("__name__", ""))
        return REAL_SLEEP_ASYNC(delay, result)

    def _note_sleep(self, seconds: float, module: str) -> None:
        if self._seen is not None and seconds > 0 and module.startswith("tests.") and module != WAITING:
            self._seen.append(f"sleeps in {module}: wait for the event, or by {WAITING}")


REAL_SLEEP, REAL_SLEEP_ASYNC = time.sleep, asyncio.sleep
GUARD = UnitGuard()
