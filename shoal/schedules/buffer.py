"""A buffer of reports, however old: no node waits for the slowest.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: "Federated Learning with Buffered Asynchronous Aggregation",
AISTATS 2022, Algorithm 1. As soon as `size` reports are in, a version is made of them, and each node that reported
starts again from it; the others train on, and their reports count in a later version, with a *staleness* tau: the
number of versions closed meanwhile. The algorithm decides the weight of a stale report.

size = 1                        each report makes a version: asynchronous SGD, FedAsync
size = floor(nodes / n)         n-softsync (Zhang, Gupta, Lian, Liu, IJCAI 2016)

A node that reported starts again at once, as in the paper: from the newest model, even the same one, with other
randomness. So no node waits, and a fast one may report several times for a version. Where not all train at once, nodes
that were not asked for this version come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2
from typing import ClassVar

from shoal.core.errors.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from shoal.core.protocol.message import ScheduleFamily
from shoal.core.scheduling.schedule import Ask, Close, Decision, Schedule, View, Wait, wait_for_nodes


@dataclass(frozen=True)
class Buffer(Schedule):
    """A version of every `size` reports, whichever nodes send them."""

    name: ClassVar[str] = "buffer"
    title: ClassVar[str] = "Buffered asynchronous aggregation (Nguyen et al. 2022)"
    versions: ClassVar[int] = 100
    family: ClassVar[ScheduleFamily] = "asynchronous"
    changeable: ClassVar[tuple[str, ...]] = ("size", "deadline_s", "min_nodes")

    size: PositiveInt = 1
    """K: updates per version; fewer if no other node can report."""
    concurrency: NonNegativeInt = 0
    """Nodes that train at the same time; 0: all."""
    staleness_max: NonNegativeInt = 100
    """Maximum staleness in versions. An older update is discarded, and its node starts from the newest model."""
    deadline_s: PositiveFloat = 600.0
    """Seconds after which a version closes with fewer updates."""
    min_nodes: PositiveInt = 1
    """Nodes that must have joined before training begins."""

    def accepts_staleness(self, staleness: int) -> bool:
        """Return True up to the bound."""
        return staleness <= self.staleness_max

    def decide(self, view: View) -> list[Decision]:
        """Close, ask the nodes that may train, or wait."""
        current = view.round
        got = len(current.reporters)
        if wait := wait_for_nodes(view, self.min_nodes):
            return wait
        if got >= self.size:
            return [Close(f"{got} reports", keep=True)]
        passed = self._passed(view)
        room = (self.concurrency or len(view.nodes.members)) * (1 + passed) - len(view.nodes.busy)
        idle = [node for node in view.idle if node not in current.failed]
        if (fresh := view.pick([node for node in idle if node not in current.asked], max(0, room))).nodes:
            begin = f"{len(fresh.nodes)} begin from version {view.version}"
            return [Ask(fresh.nodes, "train", begin + fresh.because)]
        if (again := view.pick([node for node in idle if node in current.reporters], max(0, room))).nodes:
            begin = f"{len(again.nodes)} begin again from version {view.version}"
            return [Ask(again.nodes, "train", begin + again.because)]
        return self._with_fewer(view, got) if got else self._with_none(view, passed)

    def _passed(self, view: View) -> int:
        """Return the number of deadlines that passed without a report, each twice as long as the one before: as many
        more nodes are asked each time, because the busy ones may never end."""
        opened = view.round.opened_at
        if opened is None or view.round.reporters or view.now < opened + self.deadline_s:
            return 0
        return floor(log2((view.now - opened) / self.deadline_s)) + 1

    def _with_fewer(self, view: View, got: int) -> list[Decision]:
        until = (view.round.opened_at if view.round.opened_at is not None else view.now) + self.deadline_s
        if view.nodes.busy and view.now < until:
            return [Wait(f"{got} of {self.size} reports", until)]
        why = f"the deadline of {self.deadline_s:g} s" if view.nodes.busy else "no node is left to wait for"
        return [Close(f"{got} of {self.size} reports: {why}", keep=True)]

    def _with_none(self, view: View, passed: int) -> list[Decision]:
        current = view.round
        again = tuple(node for node in view.idle if node in current.failed)
        if again and not view.nodes.busy:
            return [Ask(again, "train", f"{len(again)} are asked again")]
        until = current.opened_at + 2**passed * self.deadline_s if current.opened_at is not None else None
        if until is not None and until <= view.now:  # a rounding error must not become a busy loop
            until = view.now + self.deadline_s
        return [Wait(f"no report of {self.size} yet", until)]
