"""Federated optimization in heterogeneous networks: a spring holds each node near the model that it was sent.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2 (FedProx). Node k trains on

    F_k(w) + mu/2 ||w - w_t||^2          so that each local step adds mu (w - w_t) to the gradient

and the rest is federated averaging, which mu = 0 is. Algorithm 2 draws K devices with the probabilities p_k = n_k / n
and takes the plain mean of their models: that is the selection `examples` with `plain`. Partial work (section 5.2
there: gamma-inexact solutions): what a straggler has done counts as if it had done all. `partial` has each order,
with that chance, be done for some number of epochs from 1 to E, by the order's own seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from shoal.core.algorithm import Algorithm, Going, Local, Task, tree_slot
from shoal.core.capability import Capability, train_corrected
from shoal.core.errors import InvalidJob
from shoal.core.learner import Budget, Learner
from shoal.core.parts import Divides
from shoal.core.tree import Slots, Tree, sub, towards


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Federated averaging with a proximal term: nodes with odd data cannot run away."""

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx (Li et al. 2020)"
    divides: ClassVar[Divides] = "weights"

    changeable: ClassVar[tuple[str, ...]] = ("epochs", "batch_size", "lr", "mu")

    mu: float = 0.1
    """The strength of the spring; 0: federated averaging. Too great a one slows learning down."""
    plain: bool = False
    """Whether every report counts alike, as Algorithm 2 has it after a draw by p_k; else by its node's examples."""
    partial: float = 0.0
    """The share of orders that are done for fewer epochs, 1 to E of them at random, as stragglers would; 0: none."""

    def __post_init__(self) -> None:
        if not 0 <= self.mu < float("inf"):
            raise InvalidJob(f"fedprox: mu is {self.mu}, but must not be negative", code="job.algorithm")
        if not 0 <= self.partial <= 1:
            raise InvalidJob(f"fedprox: partial is {self.partial}, but a share lies in [0, 1]", code="job.algorithm")
        if self.partial and self.epochs < 2:
            text = f"fedprox: partial is {self.partial}, but of {self.epochs:g} epochs nothing can be left out"
            raise InvalidJob(text, code="job.algorithm", hint="raise epochs to 2 or more, or leave partial out")

    @property
    def needs(self) -> frozenset[Capability]:
        """The spring corrects each gradient."""
        return frozenset({"corrections"} if self.mu else ())

    def budget(self, task: Task) -> Budget:
        """All epochs, or a part of them."""
        whole, rng = super().budget(task), Random(f"partial/{task.seed}")  # reproducible, not secret
        return replace(whole, epochs=rng.randint(1, int(self.epochs))) if rng.random() < self.partial else whole

    def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
        """Evaluate what was sent, train near it, report the displacement."""
        base = tree_slot(task.slots, "model")

        def near(weights: Tree, gradient: Tree) -> Tree:
            return towards(gradient, base, weights, self.mu)  # gradient + mu (weights - base)

        learner.load(base)
        metrics = learner.evaluate()
        if self.mu:
            trained = train_corrected(learner, self.budget(task), near, task.tick)
        else:
            trained = learner.train(self.budget(task), tick=task.tick)
        return Local(trained.weight, {"model": sub(learner.model(), base)}, metrics | trained.metrics)

    @property
    def weighs(self) -> bool:
        """Return whether nodes weigh as much as they have examples."""
        return not self.plain
