"""The numbers of greatest magnitude now, the others later.

Stich, Cordonnier, Jaggi: "Sparsified SGD with Memory", NeurIPS 2018 (top-k, Definition 2.1); Aji, Heafield: "Sparse
Communication for Distributed Gradient Descent", EMNLP 2017. The k = ceil(fraction * n) weights of greatest magnitude of
an update with n weights are sent, with their indices, so a number costs eight bytes, fewer in half precision or
quantized. The rest is added to the node's next update (`shoal.core.algorithm.filter.pack_all`), once this one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from shoal.core.algorithm.filter import Filter, Stage
from shoal.core.errors import InvalidPayload
from shoal.core.errors.ranges import PositiveFraction
from shoal.core.model.flat_view import Floats, count_floats, packed_beside, part, put_others, row, scatter, take_others
from shoal.core.model.tree import DTYPES, Layout, Tree

PLACES, VALUES = "places", "values"


@dataclass(frozen=True)
class TopK(Filter):
    """Send the numbers of greatest magnitude."""

    name: ClassVar[str] = "top_k"
    title: ClassVar[str] = "Top-k with error feedback (Stich et al. 2018)"
    stage: ClassVar[Stage] = "choice"
    error_feedback: ClassVar[bool] = True

    fraction: PositiveFraction = 0.01
    """k / n: fraction of the numbers that an update sends."""

    def layout(self, layout: Layout) -> Layout:
        """Return a layout of ascending indices, and values; then the statistics and integers."""
        floats = count_floats(layout)
        sent = ceil(self.fraction * floats)
        wide = "I32" if floats <= np.iinfo(np.int32).max else "I64"
        return packed_beside([(PLACES, wide, (sent,)), (VALUES, "F32", (sent,))], layout)

    def encode(self, tree: Tree, seed: int) -> Tree:
        """Choose. The first of equal numbers are sent."""
        layout = self.layout(tree.layout)
        buffer = np.empty(layout.nbytes, np.uint8)
        out = Tree(layout, buffer)
        values = row(tree)
        places = greatest(values, layout.index[VALUES].elements)
        part(out, PLACES).view(DTYPES[layout.index[PLACES].dtype])[:] = places
        part(out, VALUES).view("<f4")[:] = values[places]
        put_others(tree, layout, buffer)
        return out

    def decode(self, tree: Tree, layout: Layout) -> Tree:
        """Zero wherever nothing was sent. Raises `InvalidPayload` for places that do not rise or lie outside this
        tree."""
        places = part(tree, PLACES).view(DTYPES[tree.layout.index[PLACES].dtype])
        floats = count_floats(layout)
        if places.size and (places[0] < 0 or places[-1] >= floats or np.any(places[1:] <= places[:-1])):
            raise InvalidPayload(f"the places of an update must rise from 0 to {floats - 1}", code="payload.places")
        values = np.zeros(floats, np.float32)
        values[places] = part(tree, VALUES).view("<f4")
        out = np.zeros(layout.nbytes, np.uint8)
        scatter(values, layout, out)
        take_others(tree, layout, out)
        return Tree(layout, out)


def greatest(values: Floats, count: int) -> npt.NDArray[np.intp]:
    """Return the ascending indices of the `count` numbers of greatest magnitude; NaN comes first."""
    size = np.nan_to_num(np.abs(values), nan=np.inf, posinf=np.inf)
    if count >= size.size:
        return np.arange(size.size)
    least = np.partition(size, size.size - count)[size.size - count]
    above = np.flatnonzero(size > least)
    level = np.flatnonzero(size == least)[: count - above.size]
    return np.sort(np.concatenate([above, level]))
