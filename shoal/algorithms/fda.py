"""Functional dynamic averaging: nodes send a few bytes at every check; all are averaged when their variance is large.

Theologitis, Frangias, Anestis, Samoladas, Deligiannakis: "Communication-Efficient Distributed Deep Learning via
Federated Dynamic Averaging", EDBT 2025. The bytes are a monitor's (`shoal.core.algorithm.monitored`).

With server = "adam" the mean displacement goes through a server's optimizer at each synchronization (FDA-Opt, by the
same authors). The schedule has the threshold Theta: `shoal.schedules.variance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from shoal.core.algorithm.monitored import Monitored
from shoal.core.algorithm.server_optimizer import Adam
from shoal.core.errors.ranges import PositiveFloat


@dataclass(frozen=True)
class FunctionalDynamicAveraging(Monitored):
    """Tell how far the model has gone, and report it when asked."""

    name: ClassVar[str] = "fda"
    title: ClassVar[str] = "Functional dynamic averaging (Theologitis et al. 2025)"

    server: Literal["average", "adam"] = "average"
    """`average`: the mean becomes the model; `adam`: the server's optimizer takes a step towards it (FDA-Opt)."""
    server_lr: PositiveFloat = 0.03
    """Learning rate of the server's optimizer."""

    @property
    def rule(self) -> Adam | None:
        """The server's optimizer."""
        return Adam(self.server_lr) if self.server == "adam" else None
