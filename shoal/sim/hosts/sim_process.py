"""A simulated process: it starts, dies at any instant, and starts again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import CrashPlan


class SimulatedProcess:
    """The successive processes of one machine. Calls planned by a process are dropped when it ends."""

    def __init__(self, clock: VirtualClock, crashes: CrashPlan) -> None:
        self.clock, self.crashes = clock, crashes
        self.up = False
        self.number = 0
        """Number of the newest process, from 1."""
        self._alarm = 0

    def start(self) -> None:
        """Start the next process."""
        self.up = True
        self.number += 1

    def end(self) -> None:
        self.up = False

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call after `seconds`, if the process still runs."""
        self.clock.after(seconds, self._call, self.number, act, arguments)

    def wake(self, when: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call at that time, if the process still runs and has set no other alarm."""
        self._alarm += 1
        self.clock.at(when, self._ring, self.number, self._alarm, act, arguments)

    def _call(self, number: int, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.up and number == self.number:
            act(*arguments)

    def _ring(self, number: int, alarm: int, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if alarm == self._alarm:
            self._call(number, act, arguments)
