"""Trees of one layout as the rows of one array: an operation on one row is computed on all of them at once.

A simulation that trains many nodes at once gets their models this way. A row is a `Tree` like any other, and its
results have the same bits as alone; only a sum over rows adds in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shoal.core.model.tree import BLOCK_ELEMENTS, Layout, Tree


class Stack:
    """Trees as rows; their layout has no other type than float32."""

    def __init__(self, layout: Layout, values: npt.NDArray[np.float32]) -> None:
        self.layout, self._values, self._bytes = layout, values, values.view(np.uint8)
        self._base: Tree | None = None
        self._displacements: Stack | None = None

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """The numbers of all rows, `float32[rows, elements]`."""
        return self._values

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.values)

    def __reduce__(self) -> tuple[type[Stack], tuple[Layout, npt.NDArray[np.float32]]]:
        """Return what is copied to another process: the rows alone."""
        return Stack, (self.layout, self.values)

    @staticmethod
    def suits(layout: Layout) -> bool:
        """Return True if trees of that layout can be rows."""
        return [segment.dtype for segment in layout.segments] == ["F32"]

    def row(self, index: int) -> Tree:
        """Return one of the trees."""
        return Tree(self.layout, self._bytes[index], StackRow(self, index))

    def minus(self, base: Tree) -> Stack:
        """Return the displacement of each row from a base; that from the last base is kept."""
        if self._displacements is None or self._base is not base:
            with np.errstate(over="ignore", invalid="ignore"):
                self._displacements = Stack(self.layout, self.values - base.buffer.view("<f4"))
            self._base = base
        return self._displacements

    @cached_property
    def norms(self) -> list[float]:
        """The Euclidean norm of each row."""
        totals = [0.0] * len(self.values)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, self.layout.elements, BLOCK_ELEMENTS):
                for index, row in enumerate(self.values[:, start : start + BLOCK_ELEMENTS]):
                    totals[index] += float(np.dot(row, row))
            return np.sqrt(totals).tolist()  # type: ignore[no-any-return]

    def weighted_sum(self, weights: list[float]) -> npt.NDArray[np.float64]:
        """Return `sum_i weights[i] * row_i`. A row without weight has no part in it, even if it is not finite."""
        chosen = np.flatnonzero(weights)
        rows = self.values if len(chosen) == len(weights) else self.values[chosen]
        return np.einsum("i,ij->j", np.take(weights, chosen), rows)  # type: ignore[no-any-return]


class StackRow:
    """The results for one row of a stack."""

    __slots__ = ("index", "stack")

    def __init__(self, stack: Stack, index: int) -> None:
        self.stack, self.index = stack, index

    def minus(self, base: Tree) -> Tree:
        """Return the row's displacement from a base."""
        return self.stack.minus(base).row(self.index)

    @property
    def norm(self) -> float:
        """The Euclidean norm of the row."""
        return self.stack.norms[self.index]

    def pickled(self) -> tuple[Callable[..., Tree], tuple[Stack, int]]:
        """Return what makes the row's tree again, of a stack that is pickled once for all of its rows."""
        return Stack.row, (self.stack, self.index)
