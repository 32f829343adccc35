"""Downpour SGD: replicas push gradients that they have accrued over several steps; the hub has Adagrad.

Dean, Corrado, Monga, Chen, Devin, Le, Mao, Ranzato, Senior, Tucker, Yang, Ng: "Large Scale Distributed Deep Networks",
NIPS 2012, section 4.1. A replica fetches the parameters, takes `steps` local steps, and pushes the sum of their
gradients:

    w_i = w_i - gamma G_i / sqrt(sum over all pushes so far of G_i^2),   G the sum of the gradients of one push

A push carries lr G, the way that the local steps went, so lr drops out of the quotient but for tau, which is added to
the root of the sum of (lr G)^2. Here n_fetch = n_push = `steps`. It goes with the schedule `buffer` and its `size` of
1: pushes are applied as they come, whatever their age.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm.algorithm import LocalTask
from shoal.core.algorithm.capability import Capability
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.algorithm.server_optimizer import Adagrad
from shoal.core.algorithm.server_step import ServerStep
from shoal.core.errors.ranges import NonNegativeFloat, PositiveFloat, PositiveInt
from shoal.core.protocol.message import ScheduleFamily


@dataclass(frozen=True)
class Downpour(ServerStep):
    """Nodes take a few steps of SGD and push their sum; the hub's steps get shorter, weight by weight."""

    name: ClassVar[str] = "downpour"
    title: ClassVar[str] = "Downpour SGD (Dean et al. 2012)"
    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("asynchronous",)
    unweighted: ClassVar[bool] = True

    changeable: ClassVar[tuple[str, ...]] = ("steps", "batch_size", "lr")

    epochs: NonNegativeFloat = 0.0
    """Not used: a task is `steps` mini-batches."""
    steps: PositiveInt = 5
    """n_fetch = n_push: mini-batches between two pushes."""
    server_lr: PositiveFloat = 0.03
    """gamma: learning rate of the server's Adagrad."""
    tau: PositiveFloat = 1e-8
    """Added to the square root, to avoid division by zero. It applies to lr times the sum of gradients."""

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """A push is a sum of gradients: local steps are -lr times a gradient (Algorithm 7.1 there)."""
        return frozenset({"plain_sgd"})

    def train_config(self, task: LocalTask) -> TrainConfig:
        """Train for a few mini-batches."""
        return TrainConfig(steps=self.steps, batch_size=self.batch_size, lr=self.lr, seed=task.seed)

    @property
    def rule(self) -> Adagrad:
        """The optimizer."""
        return Adagrad(self.server_lr, beta1=0.0, tau=self.tau)
