"""Virtual time: what is to happen, and when."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """Seconds since the beginning of a simulation. What is planned for one moment happens in the order of planning."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._planned: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: float, act: Callable[..., None], *arguments: Any) -> None:
        """Do this then; at once if `when` has passed."""
        self._count += 1
        heappush(self._planned, (max(when, self.now), self._count, act, arguments))

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        """Do this so many seconds from now."""
        self._count += 1
        heappush(self._planned, (self.now + seconds, self._count, act, arguments))

    def step(self) -> bool:
        """Let the next thing happen; False when nothing is planned."""
        if not self._planned:
            return False
        self.steps += 1
        self.now, _, act, arguments = heappop(self._planned)
        act(*arguments)
        return True

    def run(self, until: float) -> None:
        """Let everything happen that is planned up to that time, and let it be that time."""
        while self._planned and self._planned[0][0] <= until:
            self.step()
        self.now = max(self.now, until)
