"""FedProx: local training with a proximal term that keeps each node near the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2 (FedProx). Node k trains on

    F_k(w) + mu/2 ||w - w_t||^2          so that each local step adds mu (w - w_t) to the gradient

and the rest is FedAvg; mu = 0 gives FedAvg itself. Algorithm 2 samples K devices with the probabilities p_k = n_k / n
and takes the unweighted mean of their models: use the selection `examples` with `uniform_weights`. Updates of
stragglers that did only a part of the work count like the others (section 5.2, gamma-inexact solutions);
`partial_work_fraction` emulates them: with this probability, a task runs for 1 to E epochs, drawn by the task's seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from shoal.core.algorithm.algorithm import Algorithm, LocalTask, tree_slot
from shoal.core.algorithm.capability import Capability
from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob
from shoal.core.errors.ranges import Fraction, NonNegativeFloat
from shoal.core.model.tree import Slots
from shoal.core.model.vector_parts import ShardScope


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Federated averaging with a proximal term: nodes with odd data cannot run away."""

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx (Li et al. 2020)"
    shardable: ClassVar[ShardScope] = "weights"

    changeable: ClassVar[tuple[str, ...]] = ("epochs", "batch_size", "lr", "mu")

    mu: NonNegativeFloat = 0.1
    """Proximal coefficient; 0 gives FedAvg. A large value slows learning."""
    uniform_weights: bool = False
    """True: weight all updates equally, as Algorithm 2 does after sampling by p_k; False: by number of examples."""
    partial_work_fraction: Fraction = 0.0
    """Fraction of tasks that run only 1 to E epochs, drawn at random, to emulate stragglers; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partial_work_fraction and self.epochs < 2:
            text = f"fedprox: partial_work_fraction is {self.partial_work_fraction}, but epochs is {self.epochs:g}"
            raise InvalidJob(
                text, code="job.algorithm", hint="raise epochs to 2 or more, or leave partial_work_fraction out"
            )

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """Return `corrections` if mu is not 0: the proximal term changes each gradient."""
        return frozenset({"corrections"} if self.mu else ())

    def train_config(self, task: LocalTask) -> TrainConfig:
        """Return the configuration, with fewer epochs for a task that is drawn to be partial."""
        whole, rng = super().train_config(task), Random(f"partial/{task.seed}")  # reproducible, not secret
        return (
            replace(whole, epochs=rng.randint(1, int(self.epochs)))
            if rng.random() < self.partial_work_fraction
            else whole
        )

    def correction(self, task: LocalTask, memory: Slots) -> Correction | None:
        """Return the gradient of the proximal term, mu (weights - base); None if mu is 0."""
        return Correction(pull=self.mu, anchor=tree_slot(task.slots, "model")) if self.mu else None

    @property
    def uses_weights(self) -> bool:
        """Return True if nodes are weighted by their number of examples."""
        return not self.uniform_weights
