"""Trees as rows of one tensor on a GPU: displacements, norms and weighted sums are computed there.

The bytes of the rows are copied to the host only if something reads them, such as a filter: all at once.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.model.stack import Stack, StackRow
from shoal.core.model.tree import Bytes, Layout, Tree


class DeviceStack(Stack):
    """Trees as rows of `rows`, `uint8[rows, nbytes]`, on a device with numbers of double precision."""

    def __init__(self, layout: Layout, rows: Tensor) -> None:
        self.layout, self._rows = layout, rows.view(torch.float32)
        self._base: Tree | None = None
        self._displacements: Stack | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def values(self) -> npt.NDArray[np.float32]:
        """A copy of the rows on the host."""
        return self._rows.cpu().numpy()

    def row(self, index: int) -> Tree:
        """Return one of the trees."""
        return Tree(self.layout, DeviceRow(self, index), StackRow(self, index))

    def minus(self, base: Tree) -> Stack:
        """Return the displacement of each row from a base; that from the last base is kept."""
        if self._displacements is None or self._base is not base:
            row = torch.from_numpy(np.array(base.buffer)).to(self._rows.device)
            self._displacements = DeviceStack(self.layout, (self._rows - row.view(torch.float32)).view(torch.uint8))
            self._base = base
        return self._displacements

    @cached_property
    def norms(self) -> list[float]:
        """The Euclidean norm of each row."""
        return torch.linalg.vector_norm(self._rows, dim=1, dtype=torch.float64).tolist()  # type: ignore[no-any-return]

    def weighted_sum(self, weights: list[float]) -> npt.NDArray[np.float64]:
        """Return `sum_i weights[i] * row_i`. A row without weight has no part in it, even if it is not finite."""
        chosen = torch.tensor(np.flatnonzero(weights), device=self._rows.device)
        factors = torch.tensor(weights, dtype=torch.float64, device=self._rows.device)[chosen]
        total: npt.NDArray[np.float64] = (factors @ self._rows[chosen].double()).cpu().numpy()
        return total


class DeviceRow:
    """The bytes of a row, which are read from the copy of all rows."""

    __slots__ = ("_index", "_stack")

    def __init__(self, stack: DeviceStack, index: int) -> None:
        self._stack, self._index = stack, index

    def __len__(self) -> int:
        return self._stack.layout.nbytes

    def __getitem__(self, part: slice) -> Bytes:
        row: Bytes = self._stack.values[self._index].view(np.uint8)
        return row[part]
