"""FedAvgM: federated averaging with momentum at the hub.

Hsu, Qi, Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019
(arXiv:1909.06335), section 4.3. With d the mean displacement:

    m = beta m + d,   w = w + server_lr * m
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.server_optimizer import Momentum
from shoal.core.server_step import ServerStep


@dataclass(frozen=True)
class FedAvgM(ServerStep):
    """Nodes as in federated averaging; the hub goes on in the direction that rounds have in common."""

    name: ClassVar[str] = "fedavgm"
    title: ClassVar[str] = "FedAvgM (Hsu et al. 2019)"

    beta: float = 0.9
    """How much of m stays: 0 is federated averaging."""

    @property
    def rule(self) -> Momentum:
        """The optimizer."""
        return Momentum(self.server_lr, self.beta)
