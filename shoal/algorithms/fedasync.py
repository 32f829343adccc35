"""FedAsync: each model that comes in is mixed into the common one, the less the older it is.

Xie, Koyejo, Gupta: "Asynchronous Federated Optimization", 2019 (arXiv:1903.03934), Algorithm 1 and section 5.2:

    w = (1 - alpha_tau) w + alpha_tau w_k,   alpha_tau = alpha * s(tau)

    constant     s = 1
    polynomial   s = (1 + tau)^-a
    hinge        s = 1 if tau <= b else 1 / (a (tau - b) + 1)

Nodes report models, not displacements. It goes with the schedule `buffer` and its `size` of 1; with more, the mean of
the models, weighted by s, is mixed in with the mean of alpha_tau.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask, tree_slot
from shoal.core.algorithm.learner import Learner, present_weights
from shoal.core.errors.ranges import NonNegativeFloat, NonNegativeInt, PositiveFraction
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots
from shoal.core.model.tree_steps import towards
from shoal.core.model.vector_parts import ShardScope
from shoal.core.protocol.message import ScheduleFamily


@dataclass(frozen=True)
class FedAsync(Algorithm):
    """Asynchronous federated optimization: nodes train as in federated averaging, and no node waits."""

    name: ClassVar[str] = "fedasync"
    title: ClassVar[str] = "FedAsync (Xie et al. 2019)"
    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("asynchronous",)
    shardable: ClassVar[ShardScope] = "weights"
    unweighted: ClassVar[bool] = True
    mixed_slots: ClassVar[tuple[str, ...]] = ()
    trains_by_config: ClassVar[bool] = True

    alpha: PositiveFraction = 0.6
    """Mixing weight of a model without delay."""
    staleness: Literal["polynomial", "hinge", "constant"] = "polynomial"
    """Decay of the mixing weight with staleness."""
    a: NonNegativeFloat = 0.5
    """Exponent of `polynomial`, or slope of `hinge` (10 in the paper)."""
    b: NonNegativeInt = 4
    """Staleness in versions up to which a model keeps its full weight (`hinge`)."""

    def staleness_weight(self, staleness: int) -> float:
        """Return s(tau)."""
        if self.staleness == "polynomial":
            return float((1 + staleness) ** -self.a)
        late = max(0, staleness - self.b) if self.staleness == "hinge" else 0
        return 1.0 / (self.a * late + 1.0)

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        """Evaluate what was sent, train on it, report the model."""
        learner.load(tree_slot(task.slots, "model"))
        metrics = learner.evaluate()
        trained = learner.train(self.train_config(task), progress=task.progress)
        return LocalResult(trained.weight, {"model": present_weights(learner)}, metrics | trained.metrics)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Mix it in."""
        model, share = tree_slot(slots, "model"), self.alpha * float(totals.weight) / totals.count
        return {**slots, "model": towards(model, model, totals.mean("model"), share)}
