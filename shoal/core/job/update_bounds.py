"""Bounds on what one node can do to a job's model, whatever it sends.

Two of them, both relative to what the other nodes send, so that they need no knowledge of the model:

    norm     An update may be at most `norm_factor` times as long as is typical. Typical is the lower median of the last
             norms of the nodes that reported last, or the greatest value that this median has had: it takes more than
             half of the nodes to raise it. A refused norm is remembered like any other, so that the median follows when
             most nodes grow at once.
    share    Of a version's weight one node has at most `share_max`; what it claims beyond is not counted.

Both need three nodes: of two that differ nobody can say which is wrong. They need not report for the same version.

The clipping of norms and its reason: Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?",
2019, section 4; here a longer update is refused, not shortened, so that its node hears of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum, inf
from typing import Any

from shoal.core.algorithm import Update
from shoal.core.errors import InvalidJob
from shoal.core.message import Report

NODES_LEAST = 3
"""Nodes without which there is no majority to compare with."""

NODES_KEPT = 64
"""Nodes whose last norm and weight are remembered: those that reported last."""

UPDATES_KEPT = 16
"""Updates of one version that are kept, at most, in case that they must be taken out of its sum again."""


@dataclass(frozen=True)
class Bounds:
    """What holds in a job."""

    norm_factor: float = 100.0
    """An update may be so many times as long as is typical. (Nodes with a hundred times as much data take a hundred
    times as many steps.) 0: any number."""
    share_max: float = 0.75
    """The greatest share of a version's weight that one node has. 1: all."""

    def __post_init__(self) -> None:
        if not (self.norm_factor == 0 or 1 <= self.norm_factor < float("inf")):
            raise InvalidJob(f"limits: norm_factor is {self.norm_factor}, but must be at least 1, or 0 for no limit")
        if not 0.5 <= self.share_max <= 1:
            raise InvalidJob(f"limits: share_max is {self.share_max}, but lies in [0.5, 1]")


def lower_median(norms: Iterable[float]) -> float:
    """The middle one, or the lower of the two in the middle: more than half are at least as great."""
    ordered = sorted(norms)
    return ordered[(len(ordered) - 1) // 2]


def longest(norms: Mapping[str, float], factor: float) -> float:
    """The greatest norm that is plausible beside these; infinity where they do not say."""
    if not factor or len(norms) < NODES_LEAST:
        return inf
    return factor * lower_median(norms.values()) or inf


@dataclass
class Recent:
    """What a job's nodes have sent last, and what follows for the next. Part of a hub's state."""

    norms: dict[str, float] = field(default_factory=dict)
    """By node; who reported last stands last."""
    weights: dict[str, float] = field(default_factory=dict)
    """The same, of what was folded."""
    typical: float = 0.0
    """The greatest median of norms so far."""

    def longest(self, node: str, norm: float, factor: float) -> float | None:
        """Remember what a node has sent; the greatest norm that is plausible now. None: too few nodes to say so yet;
        infinity: there is no limit, or most send nothing but zeros."""
        _put(self.norms, node, norm)
        if len(self.norms) >= NODES_LEAST:
            self.typical = max(self.typical, lower_median(self.norms.values()))
        elif factor:
            return None
        return factor * self.typical or inf

    def weighed(self, node: str, weight: float) -> None:
        """Remember what a node's update weighs."""
        _put(self.weights, node, weight)

    @property
    def weight(self) -> float | None:
        """What an update weighs typically; None: too few nodes to say so yet."""
        return lower_median(self.weights.values()) if len(self.weights) >= NODES_LEAST else None

    def state(self) -> dict[str, Any]:
        """As JSON values; lists, because order matters."""
        return {"norms": [*self.norms.items()], "weights": [*self.weights.items()], "typical": self.typical}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Recent:
        """Return what `state` gave."""
        return cls(dict(state["norms"]), dict(state["weights"]), state["typical"])


def _put(latest: dict[str, float], node: str, value: float) -> None:
    latest.pop(node, None)
    latest[node] = value
    if len(latest) > NODES_KEPT:
        del latest[next(iter(latest))]


def too_long(norm: float, limit: float, factor: float) -> str:
    """Why an update is refused, with its numbers."""
    typical = limit / factor
    return (
        f"an update of norm {norm:.6g} is {norm / typical:.3g} times the typical {typical:.4g} of this job's nodes; "
        f"at most {factor:g} times is counted (limits.norm_factor)"
    )


class Shares:
    """The weight of each node's reports of one version; of a node that has more than all others, its reports too."""

    def __init__(self) -> None:
        self.weights: dict[str, float] = {}
        self.heaviest = ""
        self.kept: list[tuple[Report, Update, float]] = []
        """That node's reports with their discounts. Whatever they were before it had more than all others, the others
        have at least as much: so these suffice to make it light enough."""
        self._total = 0.0

    def take(self, report: Report, update: Update, discount: float) -> None:
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
        """How much of the heaviest node's weight does not count. `typical`: what an update of the job weighs; a single
        other node counts as so heavy at least, because of two one is often much the heavier."""
        few = len(self.weights) < NODES_LEAST and (typical is None or len(self.weights) < 2)
        if share_max >= 1 or few or not self.heaviest:
            return 0.0
        others = fsum(weight for node, weight in self.weights.items() if node != self.heaviest)
        if len(self.weights) == 2 and typical is not None:
            others = max(others, typical)
        return max(0.0, self.weights[self.heaviest] - others * share_max / (1 - share_max))


def too_heavy(claimed: float, counted: float, share_max: float) -> str:
    """Why a weight is not counted as it was claimed, with its numbers."""
    return (
        f"a weight of {claimed:g} counts as {counted:g}: one node has at most {100 * share_max:.3g} % of a version's "
        "weight (limits.share_max)"
    )
