"""Which peer an exchange is begun with: one that is there, answers, and does not say that it is busy."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from shoal.core.pacing import Reach

WAIT_MAX_S = 3600.0
"""Who says that it is busy is asked again after so long, whatever it says."""


class Partners:
    """What one peer has found out about the others by asking them."""

    def __init__(self, patience_s: float) -> None:
        self.reach = Reach(patience_s)
        self._busy_until: dict[str, float] = {}

    def busy(self, node: str, wait_s: float, now: float) -> None:
        """That one has said that it is of no use to ask it before so long."""
        self._busy_until[node] = now + min(wait_s, WAIT_MAX_S)

    def free_at(self, nodes: Collection[str], now: float) -> float:
        """Return when the first of these may be asked."""
        return min(self._busy_until.get(node, now) for node in nodes)

    def chosen(self, nodes: Collection[str], rng: Random, now: float) -> str:
        """Return one of these that may be asked now: at random among those that answer."""
        free = sorted(node for node in nodes if self._busy_until.get(node, now) <= now)
        answering = [node for node in free if self.reach.skipped_until(node) <= now]
        return rng.choice(answering) if answering else min(free, key=self.reach.skipped_until)
