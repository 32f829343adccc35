"""FedYogi: FedAdam with a v that goes down slowly.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2 (FedYogi):

    m = beta1 m + (1 - beta1) d,   v = v - (1 - beta2) d^2 sign(v - d^2),   w = w + server_lr * m / (sqrt(v) + tau)

m begins at 0, v at tau^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.server_optimizer import Yogi
from shoal.core.server_step import ServerStep


@dataclass(frozen=True)
class FedYogi(ServerStep):
    """Nodes as in federated averaging; the hub's step adapts to each weight, and is not surprised by small changes."""

    name: ClassVar[str] = "fedyogi"
    title: ClassVar[str] = "FedYogi (Reddi et al. 2021)"

    server_lr: float = 0.03
    """The step of the hub's optimizer."""
    beta1: float = 0.9
    """How much of the mean displacement's running mean m stays."""
    beta2: float = 0.99
    """How much of v stays."""
    tau: float = 1e-3
    """What the root of v is increased by, and where that root begins: how little adaptive the step is."""

    @property
    def rule(self) -> Yogi:
        """The optimizer."""
        return Yogi(self.server_lr, self.beta1, self.beta2, self.tau, initial=self.tau**2)
