"""Two sums of each peer that show whether peers lose updates or count them twice.

    model_projection       weight times the model, projected
    expected_projection    weight times (the model at the failover plus the updates since), projected

Exchanges move models towards each other and keep the sum of weight times model over all peers. So the sums of both over
all peers are equal, except for exchanges in progress and rounding in single precision. The spread of the projected
models, each divided by its weight, estimates how far models are apart. All peers draw the projections with the job's
seed. Statistics and tensors that are not floats are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.model.sketch import projections
from shoal.core.model.tree import Tree

PROJECTIONS = 32

Vector = npt.NDArray[np.float64]


class ConservationSums:
    """The sums of one peer while it is in mode gossip. One thread at a time."""

    def __init__(self, draw: int, kept: list[float] | None = None) -> None:
        self._draw = draw
        self._sum: Vector | None = np.array(kept) if kept is not None else None
        self._last: tuple[Tree | None, Vector] = None, np.zeros(PROJECTIONS)

    def _of(self, model: Tree) -> Vector:
        if self._last[0] is not model:
            self._last = model, projections(model, self._draw, PROJECTIONS)
        return self._last[1]

    def start(self, weight: float, model: Tree) -> None:
        """Start the sums from this model."""
        self._sum = weight * self._of(model)

    def add_update(self, weight: float, before: Tree, after: Tree) -> None:
        """Add the change of the model by a local round."""
        if self._sum is not None and after is not before:
            self._sum = self._sum + weight * (-self._of(before) + self._of(after))

    def close(self) -> None:
        """Discard the sums: this peer is back."""
        self._sum = None

    def state(self) -> list[float] | None:
        """Return the sums as JSON values, to be saved."""
        return [float(one) for one in self._sum] if self._sum is not None else None

    def report(self, weight: float, model: Tree | None) -> dict[str, Any]:
        """Return both projections for the coordinator; empty unless the peer is in mode gossip."""
        if model is None or self._sum is None:
            return {"model_projection": [], "expected_projection": []}
        return {
            "model_projection": [float(one) for one in weight * self._of(model)],
            "expected_projection": self.state(),
        }
