"""Bounds on one node's effect on a job's model, whatever it sends.

Both are relative to what the other nodes send, so they need no knowledge of the model:

norm     An update may be at most `norm_factor` times as long as is typical. Typical is the lower median of the last
             norms of the nodes that reported last, or the greatest value that this median has had: it takes more than
             half of the nodes to raise it. A refused norm is remembered like any other, so the median follows when
most
             nodes grow at once.
share    Of a version's weight one node has at most `weight_fraction_max`; the excess is not counted.

Both need three nodes: of two that differ it is unknown which one is wrong. They need not report for the same version.

The clipping of norms: Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019, section 4;
here a longer update is refused, not shortened, so its node learns of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum, inf
from typing import Any

from shoal.core.algorithm.algorithm import Update
from shoal.core.errors import InvalidJob
from shoal.core.model.aggregation import Totals
from shoal.core.protocol.message import Report, TaskId
from shoal.core.protocol.metrics import Means

NODES_LEAST = 3
"""Nodes without which there is no majority to compare with."""

NODES_KEPT = 64
"""Nodes whose last norm and weight are remembered: those that reported last."""

UPDATES_KEPT = 16
"""Updates of one version that are kept, at most, in case that they must be taken out of its sum again."""


@dataclass(frozen=True)
class UpdateBounds:
    """The bounds of a job."""

    norm_factor: float = 100.0
    """An update may be so many times as long as is typical. (Nodes with a hundred times as much data take a hundred
    times as many steps.) 0: any number."""
    weight_fraction_max: float = 0.75
    """The greatest share of a version's weight that one node has. 1: all."""

    def __post_init__(self) -> None:
        if not (self.norm_factor == 0 or 1 <= self.norm_factor < float("inf")):
            raise InvalidJob(f"limits: norm_factor is {self.norm_factor}, but must be at least 1, or 0 for no limit")
        if not 0.5 <= self.weight_fraction_max <= 1:
            raise InvalidJob(f"limits: weight_fraction_max is {self.weight_fraction_max}, but lies in [0.5, 1]")


def lower_median(norms: Iterable[float]) -> float:
    """Return the middle value, or the lower of the two in the middle: more than half are at least as great."""
    ordered = sorted(norms)
    return ordered[(len(ordered) - 1) // 2]


def plausible_norm(norms: Mapping[str, float], factor: float) -> float:
    """Return the greatest plausible norm beside these; infinity if there are too few."""
    if not factor or len(norms) < NODES_LEAST:
        return inf
    return factor * lower_median(norms.values()) or inf


@dataclass
class RecentNorms:
    """The last norms of a job's nodes, and the limits that follow from them. Part of a hub's state."""

    norms: dict[str, float] = field(default_factory=dict)
    """Norm by node, in the order of reports."""
    weights: dict[str, float] = field(default_factory=dict)
    """The same, of what was folded."""
    typical_norm: float = 0.0
    """The greatest median of norms so far."""

    def add_norm(self, node: str, norm: float, factor: float) -> float | None:
        """Remember what a node has sent; the greatest norm that is plausible now. None: too few nodes to say so yet;
        infinity: there is no limit, or most send nothing but zeros."""
        _put(self.norms, node, norm)
        if len(self.norms) < NODES_LEAST:
            return None if factor else inf
        if norm > self.typical_norm or len(self.norms) == NODES_LEAST:  # no other norm raises the median above that
            self.typical_norm = max(self.typical_norm, lower_median(self.norms.values()))
        return factor * self.typical_norm or inf

    def add_weight(self, node: str, weight: float) -> None:
        """Remember what a node's update weighs."""
        _put(self.weights, node, weight)

    @property
    def typical_weight(self) -> float | None:
        """Return the typical weight of an update; None if too few nodes have reported."""
        return lower_median(self.weights.values()) if len(self.weights) >= NODES_LEAST else None

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values; lists, because order matters."""
        return {"norms": [*self.norms.items()], "weights": [*self.weights.items()], "typical": self.typical_norm}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> RecentNorms:
        """Return what `state` gave."""
        return cls(dict(state["norms"]), dict(state["weights"]), state["typical"])


def _put(latest: dict[str, float], node: str, value: float) -> None:
    latest.pop(node, None)
    latest[node] = value
    if len(latest) > NODES_KEPT:
        del latest[next(iter(latest))]


def describe_norm(norm: float, limit: float, factor: float) -> str:
    """Return the reason for a refusal, with its numbers."""
    typical = limit / factor
    return (
        f"an update of norm {norm:.6g} is {norm / typical:.3g} times the typical {typical:.4g} of this job's nodes; "
        f"at most {factor:g} times is counted (limits.norm_factor)"
    )


class WeightShares:
    """The weight of each node's reports of one version; of a node that has more than all others, its reports too."""

    def __init__(self) -> None:
        self.weights: dict[str, float] = {}
        self.heaviest = ""
        self.kept: list[tuple[Report, Update, float]] = []
        """That node's reports with their discounts. Whatever they were before it had more than all others, the others
        have at least as much: so these suffice to make it light enough."""
        self._total = 0.0

    def add(self, report: Report, update: Update, discount: float) -> None:
        """Add a report that was folded."""
        node, weight = update.node, update.weight * discount
        mine = self.weights[node] = self.weights.get(node, 0.0) + weight
        self._total += weight
        if 2 * mine > self._total:
            if node != self.heaviest:
                self.heaviest, self.kept = node, []
            kept = sorted([*self.kept, (report, update, discount)], key=lambda one: -one[1].weight * one[2])
            self.kept = kept[:UPDATES_KEPT]
        elif self.heaviest and 2 * self.weights[self.heaviest] <= self._total:
            self.heaviest, self.kept = "", []

    def excess(self, share_max: float, typical: float | None) -> float:
        """Return how much of the heaviest node's weight does not count. `typical`: the usual weight of an update; a
        single other node counts as at least so heavy, because one of two is often much heavier."""
        few = len(self.weights) < NODES_LEAST and (typical is None or len(self.weights) < 2)
        if share_max >= 1 or few or not self.heaviest:
            return 0.0
        others = fsum(weight for node, weight in self.weights.items() if node != self.heaviest)
        if len(self.weights) == 2 and typical is not None:
            others = max(others, typical)
        return max(0.0, self.weights[self.heaviest] - others * share_max / (1 - share_max))


def describe_weight(claimed: float, counted: float, share_max: float) -> str:
    """Return the reason for a reduced weight, with its numbers."""
    return (
        f"a weight of {claimed:g} counts as {counted:g}: one node has at most {100 * share_max:.3g} % of a version's "
        "weight (limits.weight_fraction_max)"
    )


@dataclass
class RoundSum:
    """The sum of a round's updates, with what is needed to correct it, and the means of its metrics."""

    totals: Totals
    shares: WeightShares = field(default_factory=WeightShares)
    unchecked: list[tuple[Report, Update]] = field(default_factory=list)
    """Reports that were folded before enough nodes had reported to judge them."""
    reduced: dict[TaskId, float] = field(default_factory=dict)
    """Weights that are less than the report says, by task."""
    means: dict[int, Means] = field(default_factory=dict)
    """Means of metrics, by version."""

    def weight_of(self, report: Report) -> float:
        """Return a report's weight in the next version."""
        return self.reduced.get(report.task, report.weight)
