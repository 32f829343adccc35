"""Background tasks of one job: fetching trust documents, reporting the status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from shoal.runtime.worker_ports import Spawn

Call = Callable[[], Coroutine[Any, Any, None]]


class BackgroundTasks:
    """Named coroutines, of which each name runs once at a time. Calls before `start` are deferred to it."""

    def __init__(self) -> None:
        self._spawn: Spawn | None = None
        self._early: dict[str, Call] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped = False

    def run(self, what: str, call: Call) -> None:
        """Start `call`, unless one of that name is running."""
        if self._spawn is None:
            self._early[what] = call
            return
        task = self._tasks.get(what)
        if not self._stopped and (task is None or task.done()):
            self._tasks[what] = self._spawn(call())

    def start(self, spawn: Spawn) -> None:
        """Run deferred and later calls with `spawn`."""
        self._spawn = spawn
        for what, call in self._early.items():
            self.run(what, call)
        self._early.clear()

    def stop(self) -> None:
        """Cancel all tasks and start no more."""
        self._stopped = True
        for task in self._tasks.values():
            task.cancel()
