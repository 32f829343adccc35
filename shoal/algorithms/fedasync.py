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

from shoal.core.algorithm import Algorithm, Going, Local, Task, tree_slot
from shoal.core.errors import InvalidJob
from shoal.core.learner import Learner
from shoal.core.parts import Divides
from shoal.core.sums import Totals
from shoal.core.tree import Slots, towards


@dataclass(frozen=True)
class FedAsync(Algorithm):
    """Nodes train as in federated averaging and report their models; nobody waits for anybody."""

    name: ClassVar[str] = "fedasync"
    title: ClassVar[str] = "FedAsync (Xie et al. 2019)"
    divides: ClassVar[Divides] = "weights"
    alike: ClassVar[bool] = True
    gossips: ClassVar[bool] = False

    alpha: float = 0.6
    """How much of a fresh model is mixed in."""
    staleness: Literal["polynomial", "hinge", "constant"] = "polynomial"
    """How that gets less with age."""
    a: float = 0.5
    """How fast: the exponent of `polynomial`, the slope of `hinge` (where the paper takes 10)."""
    b: int = 4
    """Versions that a model may be late without losing weight (`hinge`)."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise InvalidJob(f"fedasync: alpha is {self.alpha}, but lies in (0, 1]", code="job.algorithm")
        if not 0 <= self.a < float("inf") or self.b < 0:
            raise InvalidJob("fedasync: a and b must not be negative", code="job.algorithm")

    def discount(self, staleness: int) -> float:
        """s(tau)."""
        if self.staleness == "polynomial":
            return float((1 + staleness) ** -self.a)
        late = max(0, staleness - self.b) if self.staleness == "hinge" else 0
        return 1.0 / (self.a * late + 1.0)

    def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
        """Evaluate what was sent, train on it, report the model."""
        learner.load(tree_slot(task.slots, "model"))
        metrics = learner.evaluate()
        trained = learner.train(self.budget(task), tick=task.tick)
        return Local(trained.weight, {"model": learner.model()}, metrics | trained.metrics)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Mix it in."""
        model, share = tree_slot(slots, "model"), self.alpha * float(totals.weight) / totals.count
        return {**slots, "model": towards(model, model, totals.mean("model"), share)}
