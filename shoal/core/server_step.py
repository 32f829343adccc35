"""Federated averaging whose mean displacement goes through an optimizer at the hub: what such methods share.

Reddi et al.: "Adaptive Federated Optimization", ICLR 2021, Algorithm 1 (FedOpt). Nodes do what they do in federated
averaging, and know nothing of it.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

from shoal.core.algorithm import Algorithm, tree_slot
from shoal.core.errors import InvalidJob
from shoal.core.parts import Divides
from shoal.core.server_optimizer import Rule, advance, slots_for
from shoal.core.sums import Totals
from shoal.core.tree import Slots, Tree


@dataclass(frozen=True)
class ServerStep(Algorithm):
    """A subclass has the numbers of its optimizer as fields, and says which `rule` they make."""

    gossips: ClassVar[bool] = False
    divides: ClassVar[Divides] = "weights"

    server_lr: float = 1.0
    """The step of the hub's optimizer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.startswith("beta") and not 0 <= value < 1:
                raise InvalidJob(f"{self.name}: {field.name} is {value}, but lies in [0, 1)", code="job.algorithm")
            if field.name in ("server_lr", "tau") and not 0 < value < float("inf"):
                raise InvalidJob(f"{self.name}: {field.name} is {value}, but must be above 0", code="job.algorithm")

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """The optimizer."""

    def init(self, model: Tree) -> Slots:
        """The model, and the optimizer's moments."""
        return slots_for(self.rule, model)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """A step along the nodes' mean displacement."""
        return advance(self.rule, slots, totals.mean_onto("model", tree_slot(slots, "model")))
