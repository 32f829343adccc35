"""Asynchronous SGD and n-softsync: one gradient per order, its step shortened by its age.

Zhang, Gupta, Lian, Liu: "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016, Eq. 3-6. A version is
made of the gradients g_k of c nodes, each of one mini-batch at weights that are tau_k versions old:

    w = w + m,   m = momentum * m - 1/c sum_k alpha_k g_k,   alpha_k = lr / max(tau_k, 1)

It goes with the schedule `buffer`: `size` c = 1 is asynchronous SGD, c = floor(nodes / n) n-softsync. With `rounds` it
is synchronous SGD (hardsync).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from shoal.core.algorithm import Algorithm, Going, Local, Task, tree_slot
from shoal.core.errors import InvalidJob
from shoal.core.learner import Budget, Learner
from shoal.core.parts import Divides
from shoal.core.server_optimizer import Momentum, advance, slots_for
from shoal.core.sums import Totals
from shoal.core.tree import Slots, Tree, scale


@dataclass(frozen=True)
class AsyncSGD(Algorithm):
    """Nodes send gradients of single mini-batches; the hub takes the steps."""

    name: ClassVar[str] = "asgd"
    title: ClassVar[str] = "Staleness-aware asynchronous SGD (Zhang et al. 2016)"
    divides: ClassVar[Divides] = "weights"
    alike: ClassVar[bool] = True
    gossips: ClassVar[bool] = False

    changeable: ClassVar[tuple[str, ...]] = ("batch_size", "lr")

    epochs: float = 0.0
    """Not used: an order is for one mini-batch."""
    lr: float = 0.03
    """The rate of a fresh gradient. With momentum 0.9 a step goes ten times as far in the end."""
    momentum: float = 0.9
    """Of the hub's steps."""
    staleness: Literal["divide", "ignore"] = "divide"
    """Whether a gradient's step is divided by its age in versions."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise InvalidJob(f"asgd: momentum is {self.momentum}, but lies in [0, 1)", code="job.algorithm")

    def init(self, model: Tree) -> Slots:
        """The model, and m = 0."""
        return slots_for(self._rule, model)

    def discount(self, staleness: int) -> float:
        """1 / tau."""
        return 1.0 / max(1, staleness) if self.staleness == "divide" else 1.0

    def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
        """One gradient of one mini-batch, as the displacement of a step along it."""
        learner.load(tree_slot(task.slots, "model"))
        metrics = learner.evaluate()
        budget = Budget(steps=1, batch_size=self.batch_size, lr=self.lr, seed=task.seed)
        trained, gradient = learner.gradient(budget, tick=task.tick)
        return Local(trained.weight, {"model": scale(gradient, -self.lr)}, metrics | trained.metrics)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """A step with momentum."""
        rate = float(totals.weight) / totals.count
        return advance(self._rule, slots, totals.mean_onto("model", tree_slot(slots, "model"), rate))

    @property
    def _rule(self) -> Momentum:
        return Momentum(1.0, self.momentum)
