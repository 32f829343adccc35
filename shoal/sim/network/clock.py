"""Virtual time: an agenda of calls."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

_Call = tuple[Callable[..., None], tuple[Any, ...]]


class VirtualClock:
    """Seconds since the start of a simulation. Calls planned for one moment run in the order of planning."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._moments: list[float] = []
        """A heap of the times at which calls are planned, each once."""
        self._planned: dict[float, list[_Call]] = {}
        self._due: list[_Call] = []
        """The calls of this moment, the next one last."""

    def at(self, when: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call at that time; at once if it has passed."""
        self._plan(max(when, self.now), (act, arguments))

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call after `seconds`."""
        self._plan(self.now + seconds, (act, arguments))

    def _plan(self, when: float, call: _Call) -> None:
        if when in self._planned:
            self._planned[when].append(call)
        else:
            self._planned[when] = [call]
            heappush(self._moments, when)

    def step(self) -> bool:
        """Make the next call; return False when none is planned."""
        if not self._due:
            if not self._moments:
                return False
            self.now = heappop(self._moments)
            self._due = self._planned.pop(self.now)
            self._due.reverse()
        self.steps += 1
        act, arguments = self._due.pop()
        act(*arguments)
        return True

    def run(self, until: float) -> None:
        """Make all calls that are planned up to that time, and set the time to it."""
        while (self._due and self.now <= until) or (self._moments and self._moments[0] <= until):
            self.step()
        self.now = max(self.now, until)
