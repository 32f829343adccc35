"""Federated averaging with an optimizer at the hub, which steps along the nodes' mean displacement d.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2; m begins at 0, v at tau^2:

    m = beta1 m + (1 - beta1) d,   w = w + server_lr * m / (sqrt(v) + tau)

    FedAdagrad   v = v + d^2
    FedAdam      v = beta2 v + (1 - beta2) d^2
    FedYogi      v = v - (1 - beta2) d^2 sign(v - d^2)

Hsu, Qi, Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019
(arXiv:1909.06335), section 4.3:

    FedAvgM      m = beta m + d,   w = w + server_lr * m
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm.server_optimizer import Adagrad, Adam, Momentum, Yogi
from shoal.core.algorithm.server_step import ServerStep
from shoal.core.errors.ranges import FractionBelowOne, PositiveFloat


@dataclass(frozen=True)
class FedAvgM(ServerStep):
    """Nodes as in federated averaging; the hub goes on in the direction that rounds have in common."""

    name: ClassVar[str] = "fedavgm"
    title: ClassVar[str] = "FedAvgM (Hsu et al. 2019)"
    mixed_slots: ClassVar[tuple[str, ...]] = ("model", "m")

    beta: FractionBelowOne = 0.9
    """Decay of the momentum m; 0 gives FedAvg."""

    @property
    def rule(self) -> Momentum:
        """The optimizer."""
        return Momentum(self.server_lr, self.beta)


@dataclass(frozen=True)
class FedAdagrad(ServerStep):
    """Nodes as in federated averaging; the hub's steps get shorter, weight by weight."""

    name: ClassVar[str] = "fedadagrad"
    title: ClassVar[str] = "FedAdagrad (Reddi et al. 2021)"

    server_lr: PositiveFloat = 0.1
    """Learning rate of the server's optimizer."""
    beta1: FractionBelowOne = 0.9
    """Decay of the running mean m of mean displacements."""
    tau: PositiveFloat = 1e-3
    """Added to the square root of v, and its initial value: a smaller value is more adaptive."""

    @property
    def rule(self) -> Adagrad:
        """The optimizer."""
        return Adagrad(self.server_lr, self.beta1, tau=self.tau, initial=self.tau**2)


@dataclass(frozen=True)
class FedAdam(ServerStep):
    """Nodes as in federated averaging; the hub's step adapts to each weight."""

    name: ClassVar[str] = "fedadam"
    title: ClassVar[str] = "FedAdam (Reddi et al. 2021)"

    server_lr: PositiveFloat = 0.03
    """Learning rate of the server's optimizer."""
    beta1: FractionBelowOne = 0.9
    """Decay of the running mean m of mean displacements."""
    beta2: FractionBelowOne = 0.99
    """Decay of v."""
    tau: PositiveFloat = 1e-3
    """Added to the square root of v, and its initial value: a smaller value is more adaptive."""

    @property
    def rule(self) -> Adam:
        """The optimizer."""
        return Adam(self.server_lr, self.beta1, self.beta2, self.tau, initial=self.tau**2)


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Nodes as in federated averaging; the hub's step adapts to each weight, and v decreases slowly."""

    name: ClassVar[str] = "fedyogi"
    title: ClassVar[str] = "FedYogi (Reddi et al. 2021)"

    @property
    def rule(self) -> Yogi:
        """The optimizer."""
        return Yogi(self.server_lr, self.beta1, self.beta2, self.tau, initial=self.tau**2)
