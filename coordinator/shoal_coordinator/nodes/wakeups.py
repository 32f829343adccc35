"""Wake-ups of open polls: an event per node, set when there may be something new for it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

OnWakeup = Callable[[str], None]


class Wakeups(defaultdict[str, asyncio.Event]):
    """The wakeups by node. `on_wakeup` is called with each woken node, at a coordinator that nodes do not poll."""

    def __init__(self, on_wakeup: OnWakeup | None = None) -> None:
        super().__init__(asyncio.Event)
        self._on_wakeup = on_wakeup

    def __missing__(self, node: str) -> asyncio.Event:
        if self._on_wakeup is None:
            return super().__missing__(node)
        wakeup = self[node] = _Wakeup(node, self._on_wakeup)
        return wakeup

    def notify_all(self) -> None:
        """Wake the polls of all nodes."""
        for wakeup in self.values():
            wakeup.set()


class _Wakeup(asyncio.Event):
    def __init__(self, node: str, on_wakeup: OnWakeup) -> None:
        super().__init__()
        self._node, self._on_wakeup = node, on_wakeup

    def set(self) -> None:
        super().set()
        self._on_wakeup(self._node)
