"""A table with labels: its checks, its bins, and its margins under an ensemble."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from shoal.core.boosting.ensemble import UNUSED_EDGE, Ensemble, Narrow, Wide
from shoal.core.errors import LearnerFailed
from shoal.learn.trees.objective import objective_of


class Rows:
    """A table with labels, and the margins of its rows under the ensembles that it was last asked about."""

    def __init__(self, data: tuple[Any, Any], objective: str, what: str) -> None:
        x, y = data
        self.x, self.y = numbers(x, np.float32, what), numbers(y, np.float64, what).reshape(-1)
        if self.x.ndim != 2 or not len(self.y) or len(self.x) != len(self.y):
            refuse(f"the {what} data have shape {self.x.shape} with {len(self.y)} labels; rows by features are needed")
        if not np.isfinite(self.y).all():
            refuse(f"the {what} data have a label that is not finite")
        self.objective = objective_of(objective)
        if why := self.objective.check(self.y):
            refuse(f"{what} data: {why}")
        self._known: Ensemble | None = None
        self.binned: Narrow = np.empty((0, 0), np.uint8)
        self._margins: Wide = np.empty(0)

    def margins(self, ensemble: Ensemble) -> Wide:
        """Return the margins by the complete decision trees, adding to those that are known; `binned` follows."""
        known, first = self._known, 0
        if known is None or not np.array_equal(known.edges, ensemble.edges):
            self.binned = ensemble.binned(self.x)
        elif known.grown <= ensemble.grown and _begins(ensemble, known):
            first = known.grown
        if not first:
            self._margins = np.full(len(self.y), self.objective.margin(float(ensemble.base_score[0])))
        for tree in range(first, ensemble.grown):
            self._margins = self._margins + ensemble.outputs(self.binned, tree)
        self._known = ensemble
        return self._margins


def numbers(given: Any, kind: Any, what: str) -> Narrow:
    """Return data as an array of that type. Raises `LearnerFailed` for texts, and for numbers from 2^53 on."""
    try:
        with np.errstate(over="ignore"):
            found = np.asarray(given, kind)
    except (TypeError, ValueError) as error:
        refuse(f"the {what} data cannot be used: {error}", "encode texts and categories as numbers")
    if (np.abs(found) >= UNUSED_EDGE).any():
        refuse(f"the {what} data have a value of magnitude {np.nanmax(np.abs(found)):g}, which is not below 2^53")
    return found


def refuse(why: str, hint: str = "give (x, y): float[rows, features] and a label per row") -> NoReturn:
    """Raise `LearnerFailed` for data."""
    raise LearnerFailed(why, code="learner.data", hint=hint) from None


def _begins(ensemble: Ensemble, known: Ensemble) -> bool:
    """Return whether an ensemble begins with the complete decision trees of another."""
    pairs = [(getattr(ensemble, name), getattr(known, name)) for name in ("feature", "bin", "missing_left", "value")]
    same = all(np.array_equal(one[: known.grown], other[: known.grown]) for one, other in pairs)
    return same and bool(ensemble.base_score == known.base_score)
