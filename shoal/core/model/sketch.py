"""AMS sketches: a few thousand bytes from which the norm of a vector, and of a mean of vectors, can be estimated.

Alon, Matias, Szegedy: "The Space Complexity of Approximating the Frequency Moments", STOC 1996, in the bucketed form of
Cormode and Garofalakis (VLDB 2005). Entry j of a vector u is added, with a sign, to one of the buckets of each row:

    row_r[h_r(j)] += s_r(j) * u_j          E ||row_r||^2 = ||u||^2,   Var ||row_r||^2 <= 2 ||u||^4 / buckets

A sketch is linear: the mean of sketches is the sketch of the mean, where all were made with the same *draw* of the
hashes. The error bound holds over draws, not over vectors: with fixed hashes, a direction in which models move
repeatedly may be overestimated throughout a job. So nodes draw new hashes for each reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.core.model.tree import Tree, to_float

Sketch = npt.NDArray[np.float32]
"""`float32[ROWS, BUCKETS]`."""

ROWS, BUCKETS = 5, 250
"""As in Theologitis et al., EDBT 2025."""

NBYTES = ROWS * BUCKETS * 4

ERROR: float = (2 / BUCKETS) ** 0.5
"""The relative standard deviation of a row's squared norm, at most."""

EPSILON: float = 1.5 * ERROR
"""The greatest relative overestimate of `squared_norm` in 995 of 1,000 draws: a row is 1.5 deviations above the norm
in 67, and the median is when three of five rows are. (Measured with the mean of ten nodes: in 995 of 1,000.)
"""

_GAMMA = 0x9E3779B97F4A7C15
_HALF = np.uint64(32)


def sketch(tree: Tree, draw: int) -> Sketch:
    """Return the sketch of a tree's weights, numbered in the order of its layout, with the hashes of that draw."""
    return _rows(tree, [1 + row + ROWS * draw for row in range(ROWS)], BUCKETS).astype(np.float32)


def projections(tree: Tree, draw: int, count: int) -> npt.NDArray[np.float64]:
    """Return `float64[count]`: one row of this many buckets, exact in double precision, for sums that must be exact."""
    (row,) = _rows(tree, [draw], count)
    return np.asarray(row, np.float64)


def _rows(tree: Tree, draws: Sequence[int], count: int) -> npt.NDArray[np.float64]:
    rows = np.zeros((len(draws), count))
    for segment in tree.layout.segments:
        for block in segment.blocks() if segment.is_weight else ():
            values = to_float(tree.block(block.start, block.stop), block.dtype)
            places = np.arange(block.first, block.first + values.size, dtype=np.uint64)
            for row, draw in zip(rows, draws, strict=True):
                mixed = _mixed(places ^ np.uint64(_GAMMA * draw % 2**64))
                signed = np.where(mixed & np.uint64(1), values, -values)
                buckets = ((mixed >> _HALF) * np.uint64(count)) >> _HALF
                row += np.bincount(buckets.astype(np.intp), signed, count)  # noqa: PLW2901 - a row of the result
    return rows


def squared_norm(of: Sketch) -> float:
    """Estimate ||u||^2: the median over the rows."""
    wide = of.astype(np.float64)
    return float(np.median((wide * wide).sum(axis=1)))


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hash to 64 bits each (the finalizer of SplitMix64; Steele, Lea, Flood, OOPSLA 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
