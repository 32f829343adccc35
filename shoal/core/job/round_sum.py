"""The sum of a round's updates, with the reports that are held back from it.

A report is held while its weight, or whether it counts at all, is unknown: while its node has more of the weight than
`weight_fraction_max`, and while too few nodes have reported to judge its norm. So nothing is ever taken out of a sum
again. A held update that came as a file takes no memory: its tensors are read when it is folded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum, inf

from shoal.core.algorithm.algorithm import Update
from shoal.core.job.update_bounds import NODES_LEAST
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import Report, TaskId
from shoal.core.protocol.metrics import Means

HELD_MAX = 256
"""Greatest number of reports of one version that are held, each of which may keep a file open. Beyond it the oldest
one is folded with its full weight."""


@dataclass(frozen=True, eq=False)
class HeldReport:
    """A report that was accepted and is not in the sum yet."""

    report: Report
    packed: Slots
    """Its slots as they came, with the filters applied."""
    update: Update
    """The rest of its update, without slots."""
    discount: float

    @property
    def weight(self) -> float:
        """Return the weight that it claims, after the discount for staleness."""
        return self.update.weight * self.discount


class WeightShares:
    """The weight that each node claims for its reports of one version."""

    def __init__(self) -> None:
        self.weights: dict[str, float] = {}
        self._total = 0.0

    def add(self, node: str, weight: float) -> None:
        """Add the weight of a report."""
        self.weights[node] = self.weights.get(node, 0.0) + weight
        self._total += weight

    def remove(self, node: str, weight: float) -> None:
        """Remove the weight of a report."""
        left = self.weights.pop(node) - weight
        if left > 0:
            self.weights[node] = left
        self._total = fsum(self.weights.values())

    def without(self, gone: Sequence[HeldReport]) -> WeightShares:
        """Return the shares without some reports."""
        if not gone:
            return self
        left = WeightShares()
        left.weights = dict(self.weights)
        for one in gone:
            left.remove(one.update.node, one.weight)
        return left

    def is_excessive(self, node: str, share_max: float, new: str, weight: float) -> bool:
        """Return True if a node has more of the weight than `share_max`, when a report of node `new` is added."""
        mine = self.weights.get(node, 0.0) + (weight if new == node else 0.0)
        return mine > share_max * (self._total + weight)

    def allowed_weight(self, node: str, share_max: float, typical: float | None) -> float:
        """Return the weight with which a node counts at most, if the version closes now. `typical`: the usual weight of
        an update; a single other node counts as at least so heavy, because one of two is often much heavier."""
        few = len(self.weights) < NODES_LEAST and (typical is None or len(self.weights) < 2)
        if share_max >= 1 or few:
            return inf
        others = fsum(weight for other, weight in self.weights.items() if other != node)
        if len(self.weights) == 2 and typical is not None:
            others = max(others, typical)
        return others * share_max / (1 - share_max)


@dataclass
class RoundSum:
    """The sum of a round's updates, what is held back from it, and the means of its metrics."""

    totals: Totals
    shares: WeightShares = field(default_factory=WeightShares)
    held: list[HeldReport] = field(default_factory=list)
    reduced: dict[TaskId, float] = field(default_factory=dict)
    """Weights that are less than the report says, by task."""
    means: defaultdict[int, Means] = field(default_factory=lambda: defaultdict(Means))
    """Means of metrics, by version."""

    def weight_of(self, report: Report) -> float:
        """Return a report's weight in the next version."""
        return self.reduced.get(report.task, report.weight)

    def drop(self, gone: HeldReport) -> None:
        """Remove a report that is not in the totals."""
        self.shares.remove(gone.update.node, gone.weight)
        self.held = [one for one in self.held if one is not gone]
        self.reduced.pop(gone.report.task, None)

    def weigh_held(self, share_max: float, typical: float | None) -> Sequence[tuple[HeldReport, float]]:
        """Return the held reports with the weights that count, before the discount, if the version closes now."""
        claims: defaultdict[str, float] = defaultdict(float)
        for one in self.held:
            claims[one.update.node] += one.weight
        found = []
        for one in self.held:
            node, weight = one.update.node, one.update.weight
            allowed, claimed = self.shares.allowed_weight(node, share_max, typical), claims[node]
            if self.shares.weights[node] > allowed:
                left = max(0.0, allowed - (self.shares.weights[node] - claimed))
                weight = left * (one.weight / claimed) / one.discount if claimed else 0.0
            found.append((one, weight))
        return found
