"""Federated optimization in heterogeneous networks: a spring holds each node near the model that it was sent.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2 (FedProx). Node k trains on

    F_k(w) + mu/2 ||w - w_t||^2          so that each local step adds mu (w - w_t) to the gradient

and the rest is federated averaging, which mu = 0 is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm import Algorithm, Going, Local, Task, tree_slot
from shoal.core.errors import InvalidJob
from shoal.core.learner import Learner
from shoal.core.tree import Slots, Tree, sub, towards


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Federated averaging with a proximal term: nodes with odd data cannot run away."""

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx (Li et al. 2020)"

    mu: float = 0.1
    """The strength of the spring; 0: federated averaging. Too great a one slows learning down."""

    def __post_init__(self) -> None:
        if not 0 <= self.mu < float("inf"):
            raise InvalidJob(f"fedprox: mu is {self.mu}, but must not be negative", code="job.algorithm")

    def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
        """Evaluate what was sent, train near it, report the displacement."""
        base = tree_slot(task.slots, "model")

        def near(weights: Tree, gradient: Tree) -> Tree:
            return towards(gradient, base, weights, self.mu)  # gradient + mu (weights - base)

        learner.load(base)
        metrics = learner.evaluate()
        trained = learner.train(self.budget(task), correct=near if self.mu else None, tick=task.tick)
        return Local(trained.weight, {"model": sub(learner.model(), base)}, metrics | trained.metrics)
