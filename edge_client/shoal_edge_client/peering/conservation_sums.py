"""Two sums by which anybody can see from outside that peers lose nothing and count nothing twice.

    sketch   weight times the model, projected
    books    weight times (the model at the beginning, and what was learned since), projected

Exchanges move models towards each other and leave the sum over all peers of weight times model where it was. So the
sums of sketches and of books over all peers are equal, up to what is under way and what single precision rounds off;
and the spread of sketches, each divided by its weight, estimates how far models are apart. The draw is the job's seed:
the same for all. Numbers that are not floats are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.sketch import projections
from shoal.core.tree import Tree

PROJECTIONS = 32

Vector = npt.NDArray[np.float64]


class Books:
    """One peer's, from when it goes away. Used by one thread at a time."""

    def __init__(self, draw: int, kept: list[float] | None = None) -> None:
        self._draw = draw
        self._sum: Vector | None = np.array(kept) if kept is not None else None
        self._last: tuple[Tree | None, Vector] = None, np.zeros(PROJECTIONS)

    def _of(self, model: Tree) -> Vector:
        if self._last[0] is not model:
            self._last = model, projections(model, self._draw, PROJECTIONS)
        return self._last[1]

    def begin(self, weight: float, model: Tree) -> None:
        """This peer goes away with this model."""
        self._sum = weight * self._of(model)

    def learned(self, weight: float, before: Tree, after: Tree) -> None:
        """A local round has moved the model."""
        if self._sum is not None and after is not before:
            self._sum = self._sum + weight * (-self._of(before) + self._of(after))

    def close(self) -> None:
        """This peer is back."""
        self._sum = None

    def state(self) -> list[float] | None:
        """What must be kept, as JSON values."""
        return [float(one) for one in self._sum] if self._sum is not None else None

    def shown(self, weight: float, model: Tree | None) -> dict[str, Any]:
        """`sketch` and `books`, as the coordinator is told; empty while this peer is not away."""
        if model is None or self._sum is None:
            return {"sketch": [], "books": []}
        return {"sketch": [float(one) for one in weight * self._of(model)], "books": self.state()}
