"""Bounds on the influence of one node on a job's model.

Both are relative to what the other nodes send, so they need no knowledge of the model:

norm     The norm of an update may be at most `norm_factor` times the reference norm: the largest value so far of the
             lower median of the last norms of the nodes that reported last. Only more than half of the nodes can raise
             it. Refused norms count as well, so the median follows when most nodes' norms grow at once.
weight   A node has at most `weight_fraction_max` of a version's weight; the excess is not counted.

Both need three nodes, because of two nodes that differ either may be wrong. The nodes need not report for the same
version. Until three of a job's nodes have reported, the norm of an update may be that of the model, or `norm_factor`
times the smaller of two norms.

The clipping of norms: Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019, section 4;
here a longer update is refused, not shortened, so its node learns of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from shoal.core.errors import InvalidJob

NODES_LEAST = 3
"""Nodes without which there is no majority to compare with."""

NEWS_FACTOR = 2.0
"""A node whose weight is not counted in full is reported again when its claim has grown by this factor."""

NODES_KEPT = 64
"""Nodes whose last norm and weight are remembered: those that reported last."""


@dataclass(frozen=True)
class UpdateBounds:
    """The bounds of a job."""

    norm_factor: float = 100.0
    """Maximum norm of an update as a multiple of the typical norm. (Nodes with a hundred times as much data take a
    hundred times as many steps.) 0: any number."""
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
    """The same, of reports that were accepted."""
    reduced: dict[str, float] = field(default_factory=dict)
    """The same, of reports of which a part was not counted, when people were last told of it."""
    typical_norm: float = 0.0
    """The greatest median of norms so far."""

    def add_norm(self, node: str, norm: float, factor: float) -> float:
        """Record the norm of a node's update; return the greatest plausible norm. Infinity: there is no limit, too few
        nodes to say so yet, or most send nothing but zeros."""
        _put(self.norms, node, norm)
        if len(self.norms) < NODES_LEAST:
            return inf
        if norm > self.typical_norm or len(self.norms) == NODES_LEAST:  # no other norm raises the median above that
            self.typical_norm = max(self.typical_norm, lower_median(self.norms.values()))
        return factor * self.typical_norm or inf

    def first_limit(self, factor: float, model_norm: float) -> float:
        """Return the greatest plausible norm while two nodes are known: the model's, or `factor` times the shorter norm
        if that is more; infinity if there is nothing to compare with."""
        return max(factor * lower_median(self.norms.values()), model_norm) or inf

    def add_weight(self, node: str, weight: float) -> None:
        """Remember what a node's update weighs."""
        _put(self.weights, node, weight)

    def add_reduced(self, node: str, weight: float) -> bool:
        """Remember a weight that was not counted in full; return True if it is the first one of that node, or more than
        `NEWS_FACTOR` times as much as the last reported one."""
        if weight <= NEWS_FACTOR * self.reduced.get(node, 0.0):
            return False
        _put(self.reduced, node, weight)
        return True

    @property
    def typical_weight(self) -> float | None:
        """Return the typical weight of an update; None if too few nodes have reported."""
        return lower_median(self.weights.values()) if len(self.weights) >= NODES_LEAST else None

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values; lists, because order matters."""
        return {
            "norms": [*self.norms.items()],
            "weights": [*self.weights.items()],
            "reduced": [*self.reduced.items()],
            "typical": self.typical_norm,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> RecentNorms:
        """Return what `state` gave."""
        norms, weights, reduced = (dict(state[name]) for name in ("norms", "weights", "reduced"))
        return cls(norms, weights, reduced, state["typical"])


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


def describe_first_norm(norm: float, limit: float) -> str:
    """Return the reason for the refusal of one of a job's first updates, with its numbers."""
    return (
        f"an update of norm {norm:.6g} is too long for one of a job's first: until {NODES_LEAST} nodes have reported, "
        f"at most {limit:.4g} is counted, by the model and by the shorter of two updates (limits.norm_factor)"
    )


def describe_weight(claimed: float, counted: float, total: float, share_max: float) -> str:
    """Return the reason for a reduced weight, with its numbers. `total`: of the version, without the excess."""
    share = claimed / (total - counted + claimed)
    return (
        f"a weight of {claimed:g} counts as {counted:g}: one node has at most {100 * share_max:.3g} % of a version's "
        f"weight, and this one claims {100 * share:.3g} % (limits.weight_fraction_max)"
    )
