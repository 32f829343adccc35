"""Federated SGD: one gradient over all local data per round, the baseline of federated averaging.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, section 2 (FedSGD: C-fraction of clients, E = 1, B = infinity).

    w_{t+1} = w_t - eta * sum_k n_k g_k / sum_k n_k,   g_k the mean gradient of node k's data at w_t
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask, tree_slot
from shoal.core.algorithm.capability import Capability
from shoal.core.algorithm.learner import Learner, TrainConfig, mean_gradient
from shoal.core.errors.ranges import NonNegativeFloat, NonNegativeInt
from shoal.core.model.tree import Slots, scale
from shoal.core.model.vector_parts import ShardScope


@dataclass(frozen=True)
class FedSGD(Algorithm):
    """Each node sends one gradient over all its data; the hub takes one step along their weighted mean."""

    name: ClassVar[str] = "fedsgd"
    title: ClassVar[str] = "Federated SGD (McMahan et al. 2017)"
    shardable: ClassVar[ShardScope] = "weights"

    changeable: ClassVar[tuple[str, ...]] = ("batch_size", "lr")

    epochs: NonNegativeFloat = 1.0
    """Always one pass: the gradient of all local data."""
    batch_size: NonNegativeInt = 0
    """Examples per forward pass; 0: all at once. It affects memory, not the gradient."""
    lr: NonNegativeFloat = 0.1
    """Learning rate of the one step per round."""

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """A node reports a gradient."""
        return frozenset({"gradients"})

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        """Evaluate what was sent, and report `-lr * gradient`, which is the displacement of one step."""
        base = tree_slot(task.slots, "model")
        learner.load(base)
        metrics = learner.evaluate()
        config = TrainConfig(batch_size=self.batch_size, lr=self.lr, seed=task.seed)
        trained, gradient = mean_gradient(learner, config, task.progress)
        return LocalResult(trained.weight, {"model": scale(gradient, -self.lr)}, metrics | trained.metrics)
