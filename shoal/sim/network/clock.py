"""Virtual time: an agenda of calls."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class VirtualClock:
    """Seconds since the start of a simulation. Calls planned for one moment run in the order of planning."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._planned: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call at that time; at once if it has passed."""
        self._count += 1
        heappush(self._planned, (max(when, self.now), self._count, act, arguments))

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call after `seconds`."""
        self._count += 1
        heappush(self._planned, (self.now + seconds, self._count, act, arguments))

    def step(self) -> bool:
        """Make the next call; return False when none is planned."""
        if not self._planned:
            return False
        self.steps += 1
        self.now, _, act, arguments = heappop(self._planned)
        act(*arguments)
        return True

    def run(self, until: float) -> None:
        """Make all calls that are planned up to that time, and set the time to it."""
        while self._planned and self._planned[0][0] <= until:
            self.step()
        self.now = max(self.now, until)
