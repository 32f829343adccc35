"""Asynchronous SGD and n-softsync: one gradient per task, its step shortened by its age.

Zhang, Gupta, Lian, Liu: "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016, Eq. 3-6. A version is
made of the gradients g_k of c nodes, each of one mini-batch at weights that are tau_k versions old:

    w = w + m,   m = momentum * m - 1/c sum_k alpha_k g_k,   alpha_k = lr / max(tau_k, 1)

It goes with the schedule `buffer`: `size` c = 1 is asynchronous SGD, c = floor(nodes / n) n-softsync. With `rounds` it
is synchronous SGD (hardsync).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask, tree_slot
from shoal.core.algorithm.capability import Capability
from shoal.core.algorithm.learner import Learner, TrainConfig, mean_gradient
from shoal.core.algorithm.server_optimizer import Momentum, optimizer_slots, take_step
from shoal.core.errors.ranges import FractionBelowOne, NonNegativeFloat
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots, Tree, scale
from shoal.core.model.vector_parts import ShardScope
from shoal.core.protocol.message import ScheduleFamily


@dataclass(frozen=True)
class AsyncSGD(Algorithm):
    """Nodes send gradients of single mini-batches; the hub takes the steps."""

    name: ClassVar[str] = "asgd"
    title: ClassVar[str] = "Staleness-aware asynchronous SGD (Zhang et al. 2016)"
    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("asynchronous", "synchronous")
    shardable: ClassVar[ShardScope] = "weights"
    unweighted: ClassVar[bool] = True
    mixed_slots: ClassVar[tuple[str, ...]] = ()

    changeable: ClassVar[tuple[str, ...]] = ("batch_size", "lr")

    epochs: NonNegativeFloat = 0.0
    """Not used: a task is one mini-batch."""
    lr: NonNegativeFloat = 0.03
    """Learning rate for a gradient without delay. With momentum 0.9, steps are ten times as long in the limit."""
    momentum: FractionBelowOne = 0.9
    """Momentum of the server's steps."""
    staleness: Literal["divide", "ignore"] = "divide"
    """`divide`: divide the step of a gradient by its staleness in versions."""

    def init(self, model: Tree) -> Slots:
        """Return the model, and m = 0."""
        return optimizer_slots(self._rule, model)

    def staleness_weight(self, staleness: int) -> float:
        """Return 1 / tau."""
        return 1.0 / max(1, staleness) if self.staleness == "divide" else 1.0

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """A node reports a gradient."""
        return frozenset({"gradients"})

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        """Compute one gradient of one mini-batch, as the displacement of a step along it."""
        learner.load(tree_slot(task.slots, "model"))
        metrics = learner.evaluate()
        config = TrainConfig(steps=1, batch_size=self.batch_size, lr=self.lr, seed=task.seed)
        trained, gradient = mean_gradient(learner, config, task.progress)
        return LocalResult(trained.weight, {"model": scale(gradient, -self.lr)}, metrics | trained.metrics)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Take a step with momentum."""
        rate = float(totals.weight) / totals.count
        return take_step(self._rule, slots, totals.mean_onto("model", tree_slot(slots, "model"), rate))

    @property
    def _rule(self) -> Momentum:
        return Momentum(1.0, self.momentum)
