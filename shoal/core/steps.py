"""The steps that two peers take towards each other: how long one may be, and how it is taken."""

from __future__ import annotations

from math import inf
from statistics import median

from shoal.core.doubling import FREE
from shoal.core.exchange import Doubt, Step
from shoal.core.gossip import Holding
from shoal.core.pacing import NORM_TIMES_MAX
from shoal.core.peer_message import Swap, Swapped
from shoal.core.tree import Tree, towards, towards_owing

REMEMBERED = 15
"""Steps whose lengths say how long a step usually is."""

CAP_FACTOR = 2.0
"""A step may be so many times as long as the median of the last ones."""

PLANNED_FACTOR = 8.0
"""A step of the last averaging, which many models take together, may be so many times as long. (In simulation, with
peers of unlike speed, 5 times was the most.)"""

UNCAPPED = float(2.0**1000)

HALVES = frozenset({"F16", "BF16"})


def unlike(theirs: float, mine: float) -> str:
    """Why models of these norms are not exchanged; empty: they may be."""
    if theirs <= NORM_TIMES_MAX * max(mine, 1.0) and mine <= NORM_TIMES_MAX * max(theirs, 1.0):
        return ""
    times = f"one is more than {NORM_TIMES_MAX:g} times as long as the other"
    return f"models of norms {theirs:.4g} and {mine:.4g}: {times}"


def acceptable(message: Swapped, doubt: Doubt, way: float) -> bool:
    """Rounding aside, a step that an honest partner would have taken."""
    fair = 0 <= message.weight < inf and message.weight + doubt.weight > 0 and 0 < message.share <= 1
    return fair and way < inf and message.share * way <= doubt.cap * 1.001


class Steps:
    """Takes one peer's steps. `clip`: whether those that are far longer than usual are shortened."""

    def __init__(self, *, clip: bool) -> None:
        self._clip = clip
        self._lengths: list[float] = []
        self._owed: Tree | None = None  # what rounding kept back of its steps; lost in a crash, which is one rounding

    def cap(self, *, planned: bool) -> float:
        """Return the longest step that this peer is ready to take. `planned`: in the last averaging."""
        if not self._clip or len(self._lengths) < REMEMBERED // 3:
            return UNCAPPED
        return (PLANNED_FACTOR if planned else CAP_FACTOR) * median(self._lengths) or UNCAPPED

    def take(self, me: Holding, message: Swap | Swapped, step: Step, mass: float, mass_after: float) -> None:
        """Move the model, so that mass times model changes by as much as the partner's, the other way."""
        part = message.weight / (step.weight + message.weight)
        if mass_after not in (mass, 0.0):  # what it has moved since it was shown, and roundings, weigh what they did
            me.model = towards(me.model, step.mine, me.model, mass / mass_after - 1)
        elif mass_after and step.weight:
            part *= step.weight / mass
        steps_end = not me.filters and not any(one.dtype in HALVES for one in me.model.layout.segments)
        if steps_end:
            me.model = towards(me.model, step.mine, step.theirs, part * step.share)
        else:  # models that are seen or kept coarsely never meet: roundings of steps without end would add up
            me.model, self._owed = towards_owing(me.model, step.mine, step.theirs, part * step.share, self._owed)
        me.together = frozenset()
        if message.step <= FREE:
            me.met(message.node, part * step.way if step.share == 1.0 else step.way)
        if not me.resting:  # the short steps among models that are near say nothing of one that is late
            self._lengths = [*self._lengths, step.share * step.way][-REMEMBERED:]
