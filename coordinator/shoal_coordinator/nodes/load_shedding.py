"""How busy this coordinator is, and how long it asks nodes to stay away because of that (`shoal.core.steering`)."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

from shoal.core.steering import Burden

HEADER = "shoal-retry-after"
"""In answers that are none of refusal: seconds, as a decimal. (A refusal has HTTP's own `Retry-After`.)"""

MEMORY_S = 5.0
"""What was longer ago counts for a third, or less."""


class Steering:
    """`nodes`: how many come again and again at this moment."""

    def __init__(self, arrivals_per_s: float, nodes: Callable[[], int]) -> None:
        self._arrivals_per_s, self._nodes = arrivals_per_s, nodes
        self._random = random.Random()
        self._cpu_s, self._at = time.process_time(), time.monotonic()
        self.load = 0.0
        """The processor time that this process takes, in cores, at most 1: nearly all of it is one thread at a time."""
        self.pauses = 0
        """Answers so far that asked for one."""

    def measure(self) -> None:
        """Look at the clocks; to be called now and then."""
        cpu_s, at = time.process_time(), time.monotonic()
        passed = at - self._at
        if passed > 0:
            share, weight = min(1.0, (cpu_s - self._cpu_s) / passed), -math.expm1(-passed / MEMORY_S)
            self.load += weight * (share - self.load)
            self._cpu_s, self._at = cpu_s, at

    def burden(self) -> Burden:
        """How things stand."""
        return Burden(self._nodes(), self.load, self._arrivals_per_s)

    def pause_s(self, held_s: float = 0.0) -> float:
        """Seconds that the next answer asks its node to stay away, after it was held back for so long; often 0."""
        found = self.burden().pause_s(held_s, self._random)
        self.pauses += found > 0
        return found
