"""The correction that an algorithm makes to each local gradient, as data: a learner may keep it on its device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from shoal.core.algorithm.learner import as_tree
from shoal.core.errors import LearnerFailed
from shoal.core.model.aggregation import TreeSum
from shoal.core.model.tree import Array, Tree, add, norm
from shoal.core.model.tree_steps import towards


@final
class Correction:
    """A linear correction, `gradient + offset + pull * (weights - anchor)`, for the gradients of one task.

    Call it with the weights and the gradient of each step to get the corrected gradient. A learner whose weights are on
    a device may compute the same there from the fields, and calls `count` at the end of its training.

    offset      a tree, or None: nothing is added
    anchor      a tree, or None: weights are not pulled
    averages    True if the algorithm needs the mean of the gradients before their correction
    """

    def __init__(
        self, *, offset: Tree | None = None, pull: float = 0.0, anchor: Tree | None = None, averages: bool = False
    ) -> None:
        self.offset, self.pull, self.anchor, self.averages = offset, pull, anchor, averages
        self.steps = 0
        """Number of gradients corrected."""
        self.source = "train"
        """The caller, for errors about the arguments."""
        self._sum: TreeSum | None = None

    def __call__(self, weights: Mapping[str, Array], gradient: Mapping[str, Array]) -> Tree:
        """Return the corrected gradient, rounded once. Raises `LearnerFailed` for other things than named arrays."""
        weights, gradient = as_tree(weights, self.source), as_tree(gradient, self.source)
        self.count(1, gradient if self.averages else None)
        if self.anchor is not None:
            return towards(gradient, self.anchor, weights, self.pull, self.offset)
        return gradient if self.offset is None else add(gradient, self.offset)

    def count(self, steps: int, mean: Tree | None = None) -> None:
        """Count corrected gradients, and add the mean of them before their correction, which `averages` asks for.

        Raises `Refused` if the mean is not finite, `LearnerFailed` if it is needed and missing.
        """
        self.steps += steps
        if mean is None and self.averages and steps:
            hint = "call count(steps, mean), or pass each gradient through correct(weights, gradient)"
            raise LearnerFailed(f"{self.source} counts steps without the mean of their gradients", hint=hint)
        if mean is not None and steps:
            self._sum = self._sum or TreeSum(mean.layout)
            self._sum.add(mean, float(steps), norm(mean))

    def take_mean(self) -> Tree | None:
        """Return the mean of the gradients before their correction, once; None if there were none."""
        total, self._sum = self._sum, None
        return None if total is None else total.mean_onto()
