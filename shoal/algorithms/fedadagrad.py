"""FedAdagrad: the hub's step gets shorter for a weight the more it has moved.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2 (FedAdagrad):

    m = beta1 m + (1 - beta1) d,   v = v + d^2,   w = w + server_lr * m / (sqrt(v) + tau)

m begins at 0, v at tau^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.server_optimizer import Adagrad
from shoal.core.server_step import ServerStep


@dataclass(frozen=True)
class FedAdagrad(ServerStep):
    """Nodes as in federated averaging; the hub's steps get shorter, weight by weight."""

    name: ClassVar[str] = "fedadagrad"
    title: ClassVar[str] = "FedAdagrad (Reddi et al. 2021)"

    server_lr: float = 0.1
    """The step of the hub's optimizer."""
    beta1: float = 0.9
    """How much of the mean displacement's running mean m stays."""
    tau: float = 1e-3
    """What the root of v is increased by, and where that root begins: how little adaptive the step is."""

    @property
    def rule(self) -> Adagrad:
        """The optimizer."""
        return Adagrad(self.server_lr, self.beta1, tau=self.tau, initial=self.tau**2)
