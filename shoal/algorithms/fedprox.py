"""Federated optimization in heterogeneous networks: a spring holds each node near the model that it was sent.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2 (FedProx). Node k trains on

    F_k(w) + mu/2 ||w - w_t||^2          so that each local step adds mu (w - w_t) to the gradient

and the rest is federated averaging, which mu = 0 is. Algorithm 2 draws K devices with the probabilities p_k = n_k / n
and takes the plain mean of their models: that is the selection `examples` with `plain`. Partial work (section 5.2
there: gamma-inexact solutions): what a straggler has done counts as if it had done all. `partial` has each task,
with that chance, be done for some number of epochs from 1 to E, by the task's own seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask, tree_slot
from shoal.core.algorithm.capability import Capability, train_corrected
from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import Learner, TrainConfig, present_weights
from shoal.core.errors import InvalidJob
from shoal.core.errors.ranges import Fraction, NonNegativeFloat
from shoal.core.model.tree import Slots, sub
from shoal.core.model.vector_parts import ShardScope


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Federated averaging with a proximal term: nodes with odd data cannot run away."""

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx (Li et al. 2020)"
    shardable: ClassVar[ShardScope] = "weights"

    changeable: ClassVar[tuple[str, ...]] = ("epochs", "batch_size", "lr", "mu")

    mu: NonNegativeFloat = 0.1
    """The strength of the spring; 0: federated averaging. Too great a one slows learning down."""
    plain: bool = False
    """True if every report counts alike, as in Algorithm 2 after a draw by p_k; otherwise by its node's examples."""
    partial: Fraction = 0.0
    """The share of orders that are done for fewer epochs, 1 to E of them at random, as stragglers would; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partial and self.epochs < 2:
            text = f"fedprox: partial is {self.partial}, but of {self.epochs:g} epochs nothing can be left out"
            raise InvalidJob(text, code="job.algorithm", hint="raise epochs to 2 or more, or leave partial out")

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """The spring corrects each gradient."""
        return frozenset({"corrections"} if self.mu else ())

    def train_config(self, task: LocalTask) -> TrainConfig:
        """Return all epochs, or a part of them."""
        whole, rng = super().train_config(task), Random(f"partial/{task.seed}")  # reproducible, not secret
        return replace(whole, epochs=rng.randint(1, int(self.epochs))) if rng.random() < self.partial else whole

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        """Evaluate what was sent, train near it, report the displacement."""
        base = tree_slot(task.slots, "model")
        learner.load(base)
        metrics = learner.evaluate()
        if self.mu:
            near = Correction(pull=self.mu, anchor=base)  # gradient + mu (weights - base)
            trained = train_corrected(learner, self.train_config(task), near, task.tick)
        else:
            trained = learner.train(self.train_config(task), tick=task.tick)
        return LocalResult(trained.weight, {"model": sub(present_weights(learner), base)}, metrics | trained.metrics)

    @property
    def uses_weights(self) -> bool:
        """Return whether nodes weigh as much as they have examples."""
        return not self.plain
