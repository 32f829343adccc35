"""AMS sketches: a few thousand bytes from which the norm of a vector, and of a mean of vectors, can be estimated.

Alon, Matias, Szegedy: "The Space Complexity of Approximating the Frequency Moments", STOC 1996, in the bucketed form of
Cormode and Garofalakis (VLDB 2005). Entry j of a vector u is added, with a sign, to one of the buckets of each row:

    row_r[h_r(j)] += s_r(j) * u_j          E ||row_r||^2 = ||u||^2,   Var ||row_r||^2 <= 2 ||u||^4 / buckets

A sketch is linear: the mean of sketches is the sketch of the mean. Hashes are fixed, so all nodes use the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.core.tree import Tree, to_float

Sketch = npt.NDArray[np.float32]
"""`float32[ROWS, BUCKETS]`."""

ROWS, BUCKETS = 5, 250
"""As in Theologitis et al., EDBT 2025."""

NBYTES = ROWS * BUCKETS * 4

ERROR: float = (2 / BUCKETS) ** 0.5
"""The relative standard deviation of a row's squared norm, at most."""

_SEEDS = tuple(0x9E3779B97F4A7C15 * (row + 1) % 2**64 for row in range(ROWS))
_HALF = np.uint64(32)


def sketch(tree: Tree) -> Sketch:
    """The sketch of a tree's floats, numbered in the order of its layout."""
    rows = np.zeros((ROWS, BUCKETS))
    for segment in tree.layout.segments:
        for block in segment.blocks() if segment.is_float else ():
            values = to_float(tree.block(block.start, block.stop), block.dtype)
            places = np.arange(block.first, block.first + values.size, dtype=np.uint64)
            for row, seed in enumerate(_SEEDS):
                mixed = _mixed(places ^ np.uint64(seed))
                signed = np.where(mixed & np.uint64(1), values, -values)
                buckets = ((mixed >> _HALF) * np.uint64(BUCKETS)) >> _HALF
                rows[row] += np.bincount(buckets.astype(np.intp), signed, BUCKETS)
    return rows.astype(np.float32)


def squared_norm(of: Sketch) -> float:
    """The estimate of ||u||^2: the median over the rows."""
    wide = of.astype(np.float64)
    return float(np.median((wide * wide).sum(axis=1)))


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A hash of 64 bits each (the finaliser of SplitMix64; Steele, Lea, Flood, OOPSLA 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
