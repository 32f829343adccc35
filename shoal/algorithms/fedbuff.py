"""FedBuff: displacements from models of any age, discounted by it, averaged in buffers of K.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: "Federated Learning with Buffered Asynchronous Aggregation",
AISTATS 2022, Algorithm 1, with the staleness function of its section 5:

    w = w + server_lr / K * sum_k s(tau_k) d_k,   s(tau) = (1 + tau)^-exponent

The sum is divided by K, not by the sum of the discounts: a buffer of stale reports makes a shorter step. Every report
counts alike, whatever its node holds. It goes with the schedule `buffer`, whose `size` is K.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.errors.ranges import NonNegativeFloat, PositiveFloat
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots
from shoal.core.model.vector_parts import ShardScope
from shoal.core.protocol.message import ScheduleFamily


@dataclass(frozen=True)
class FedBuff(Algorithm):
    """Buffered asynchronous aggregation: nodes train as in federated averaging, and no node waits for the slowest."""

    name: ClassVar[str] = "fedbuff"
    title: ClassVar[str] = "FedBuff (Nguyen et al. 2022)"
    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("asynchronous",)
    shardable: ClassVar[ShardScope] = "weights"
    unweighted: ClassVar[bool] = True
    mixed_slots: ClassVar[tuple[str, ...]] = ()

    server_lr: PositiveFloat = 1.0
    """Learning rate of the server, applied to the mean of the buffer."""
    exponent: NonNegativeFloat = 0.5
    """Exponent of the decay of an update's weight with staleness; 0: no decay."""

    def staleness_weight(self, staleness: int) -> float:
        """Return s(tau)."""
        return float((1 + staleness) ** -self.exponent)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Take a step that is shorter the older the reports are."""
        rate = self.server_lr * float(totals.weight) / totals.count
        return {**slots, "model": totals.mean_onto("model", tree_slot(slots, "model"), rate)}
