"""Load shedding: this coordinator's load, and how long it asks nodes to stay away
(`shoal.core.scheduling.pace_steering`).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

from shoal.core.scheduling.pace_steering import LoadEstimate

HEADER = "shoal-retry-after"
"""Header of answers other than refusals: decimal seconds. (A refusal has HTTP's own `Retry-After`.)"""

MEMORY_S = 5.0
"""Time constant in seconds: earlier load counts for a third, or less."""


class LoadShedding:
    """`nodes`: how many come again and again at this moment."""

    def __init__(self, checkins_per_s_max: float, nodes: Callable[[], int]) -> None:
        self._arrivals_per_s, self._nodes = checkins_per_s_max, nodes
        self._random = random.Random()
        self._cpu_s, self._at = time.process_time(), time.monotonic()
        self.load = 0.0
        """The processor time that this process takes, in cores, at most 1: nearly all of it is one thread at a time."""
        self.pauses_asked = 0
        """Answers so far that asked for one."""

    def measure(self) -> None:
        """Look at the clocks; to be called now and then."""
        cpu_s, at = time.process_time(), time.monotonic()
        passed = at - self._at
        if passed > 0:
            share, weight = min(1.0, (cpu_s - self._cpu_s) / passed), -math.expm1(-passed / MEMORY_S)
            self.load += weight * (share - self.load)
            self._cpu_s, self._at = cpu_s, at

    def estimate(self) -> LoadEstimate:
        """Return the present load."""
        return LoadEstimate(self._nodes(), self.load, self._arrivals_per_s)

    def pause_s(self, held_s: float = 0.0) -> float:
        """Return the seconds for which the next answer asks its node to stay away, after it was held back; often 0."""
        found = self.estimate().pause_s(held_s, self._random)
        self.pauses_asked += found > 0
        return found
