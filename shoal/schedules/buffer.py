"""A buffer of reports, however old: nobody waits for the slowest.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: "Federated Learning with Buffered Asynchronous Aggregation",
AISTATS 2022, Algorithm 1. As soon as `size` reports are in, a version is made of them, and whoever reported begins anew
from it; the others train on, and their reports count in a later version, with a *staleness* tau of as many versions as
were made meanwhile. What a stale report weighs is the algorithm's business (`Algorithm.discount`).

    size = 1                        each report makes a version: asynchronous SGD, FedAsync
    size = floor(nodes / n)         n-softsync (Zhang, Gupta, Lian, Liu, IJCAI 2016)

Who has reported begins again at once, as in the paper: from the newest model, be it the same one, with other
randomness. So nobody waits for anybody, and a fast node may report several times for a version. Where not all train at
once, those come first who were not asked for this version yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2
from typing import ClassVar

from shoal.core.errors import InvalidJob
from shoal.core.schedule import Ask, Close, Decision, Schedule, View, Wait, check_patience, gathering


@dataclass(frozen=True)
class Buffer(Schedule):
    """A version of every so many reports, from whomever they come."""

    name: ClassVar[str] = "buffer"
    title: ClassVar[str] = "Buffered asynchronous aggregation (Nguyen et al. 2022)"
    versions: ClassVar[int] = 100
    renews: ClassVar[bool] = True
    again: ClassVar[bool] = True
    changeable: ClassVar[tuple[str, ...]] = ("size", "deadline_s", "min_nodes")

    size: int = 1
    """K: reports that make a version. Fewer do when nobody is left to wait for."""
    concurrency: int = 0
    """Nodes that train at the same time; 0: all."""
    staleness_max: int = 100
    """Versions that a report may be late. An older one does not count, and its node begins anew."""
    deadline_s: float = 600.0
    """Seconds after which a version is made of fewer reports."""
    min_nodes: int = 1
    """Nodes that must have joined before the first is asked."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.concurrency < 0 or self.staleness_max < 0:
            raise InvalidJob("buffer: size must be at least 1, concurrency and staleness_max not negative")
        check_patience(self.name, self.deadline_s, self.min_nodes)

    def admits(self, staleness: int) -> bool:
        """Up to the bound."""
        return staleness <= self.staleness_max

    def decide(self, view: View) -> list[Decision]:
        """Close, ask whoever may train, or wait."""
        got = len(view.reports)
        if wait := gathering(view, self.min_nodes):
            return wait
        if got >= self.size:
            return [Close(f"{got} reports", keep=True)]
        passed = self._passed(view)
        room = (self.concurrency or len(view.members)) * (1 + passed) - len(view.busy)
        idle = [node for node in view.idle if node not in view.failed]
        if (fresh := view.pick([node for node in idle if node not in view.asked], max(0, room))).nodes:
            begin = f"{len(fresh.nodes)} begin from version {view.version}"
            return [Ask(fresh.nodes, "train", begin + fresh.because)]
        if (again := view.pick([node for node in idle if node in view.reports], max(0, room))).nodes:
            begin = f"{len(again.nodes)} begin again from version {view.version}"
            return [Ask(again.nodes, "train", begin + again.because)]
        return self._with_fewer(view, got) if got else self._with_none(view, passed)

    def _passed(self, view: View) -> int:
        """Deadlines that have passed without a report, each twice as long as the one before: so often as many more
        nodes are asked as train at once, for those who have the room may never end."""
        late = view.opened is not None and not view.reports and view.now >= view.opened + self.deadline_s
        return floor(log2((view.now - view.opened) / self.deadline_s)) + 1 if late and view.opened is not None else 0

    def _with_fewer(self, view: View, got: int) -> list[Decision]:
        until = (view.opened if view.opened is not None else view.now) + self.deadline_s
        if view.busy and view.now < until:
            return [Wait(f"{got} of {self.size} reports", until)]
        why = f"the deadline of {self.deadline_s:g} s" if view.busy else "nobody is left to wait for"
        return [Close(f"{got} of {self.size} reports: {why}", keep=True)]

    def _with_none(self, view: View, passed: int) -> list[Decision]:
        again = tuple(node for node in view.idle if node in view.failed)
        if again and not view.busy:
            return [Ask(again, "train", f"{len(again)} are asked again")]
        until = view.opened + 2**passed * self.deadline_s if view.opened is not None else None
        if until is not None and until <= view.now:  # a rounding error must not become a busy loop
            until = view.now + self.deadline_s
        return [Wait(f"no report of {self.size} yet", until)]
