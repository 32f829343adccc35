"""Federated averaging whose mean displacement goes through an optimizer at the hub: what such methods share.

Reddi et al.: "Adaptive Federated Optimization", ICLR 2021, Algorithm 1 (FedOpt). Nodes do what they do in federated
averaging, and know nothing of it.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.algorithm.server_optimizer import UpdateRule, optimizer_slots, take_step
from shoal.core.errors.ranges import PositiveFloat
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots, Tree
from shoal.core.model.vector_parts import ShardScope


@dataclass(frozen=True)
class ServerStep(Algorithm):
    """A subclass has the numbers of its optimizer as fields, and says which `rule` they make."""

    mixed_slots: ClassVar[tuple[str, ...]] = ()
    shardable: ClassVar[ShardScope] = "weights"

    server_lr: PositiveFloat = 1.0
    """Learning rate of the coordinator's optimizer."""

    @property
    @abstractmethod
    def rule(self) -> UpdateRule:
        """The optimizer."""

    def init(self, model: Tree) -> Slots:
        """Return the model, and the optimizer's moments."""
        return optimizer_slots(self.rule, model)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Take a step along the nodes' mean displacement."""
        return take_step(self.rule, slots, totals.mean_onto("model", tree_slot(slots, "model")))
