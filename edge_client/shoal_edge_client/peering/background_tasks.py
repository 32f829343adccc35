"""What one job of a peer does beside its machine: fetching papers, telling the coordinator how it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Call = Callable[[], Coroutine[Any, Any, None]]


class Beside:
    """Each thing is done once at a time. What is asked for before `begin` is done from then on."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None
        self._early: dict[str, Call] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped = False

    def do(self, what: str, call: Call) -> None:
        """Do it, unless it is being done already."""
        if self._group is None:
            self._early[what] = call
            return
        task = self._tasks.get(what)
        if not self._stopped and (task is None or task.done()):
            self._tasks[what] = self._group.create_task(call())

    def begin(self, group: asyncio.TaskGroup) -> None:
        """From now on, as tasks of that group."""
        self._group = group
        for what, call in self._early.items():
            self.do(what, call)
        self._early.clear()

    def stop(self) -> None:
        """Cancel what is being done, and do nothing more."""
        self._stopped = True
        for task in self._tasks.values():
            task.cancel()
