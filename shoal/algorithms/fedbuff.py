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

from shoal.core.algorithm import Algorithm, tree_slot
from shoal.core.errors import InvalidJob
from shoal.core.parts import Divides
from shoal.core.sums import Totals
from shoal.core.tree import Slots


@dataclass(frozen=True)
class FedBuff(Algorithm):
    """Nodes as in federated averaging; nobody waits for the slowest."""

    name: ClassVar[str] = "fedbuff"
    title: ClassVar[str] = "FedBuff (Nguyen et al. 2022)"
    divides: ClassVar[Divides] = "weights"
    alike: ClassVar[bool] = True
    gossips: ClassVar[bool] = False

    server_lr: float = 1.0
    """The step along the buffer's mean."""
    exponent: float = 0.5
    """How fast a report loses weight with its staleness; 0: not at all."""

    def __post_init__(self) -> None:
        if not 0 < self.server_lr < float("inf") or not 0 <= self.exponent < float("inf"):
            raise InvalidJob("fedbuff: server_lr must be above 0, exponent not negative", code="job.algorithm")

    def discount(self, staleness: int) -> float:
        """s(tau)."""
        return float((1 + staleness) ** -self.exponent)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """A step that is the shorter the older the reports are."""
        rate = self.server_lr * float(totals.weight) / totals.count
        return {**slots, "model": totals.mean_onto("model", tree_slot(slots, "model"), rate)}
