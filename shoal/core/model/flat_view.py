"""All weights of a tree as one row of float32, and its other tensors beside them: what filters work on.

The order is that of the layout. Whole numbers of a model (a counter) have no nearness, and statistics are values in
units of their own, which neither a common scale nor a choice among all numbers suits. So filters send both as they are,
under the name of their tensor with "=" before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.core.model.tree import Bytes, Entry, Layout, Leaf, Segment, Tree, from_float, to_float

Floats = npt.NDArray[np.float32]


def count_floats(layout: Layout) -> int:
    """Return the number of weights in a tree of that layout."""
    return sum(leaf.elements for leaf in layout.leaves if layout.is_weight(leaf))


def packed_beside(entries: Sequence[Entry], layout: Layout) -> Layout:
    """Return a packed layout: the entries that stand for the weights of `layout`, and its other tensors."""
    kept = [(f"={leaf.name}", leaf.dtype, leaf.shape) for leaf in layout.leaves if not layout.is_weight(leaf)]
    return Layout.of([*entries, *kept], layout.base_model, (f"={name}" for name in layout.statistics))


def part(tree: Tree, name: str) -> Bytes:
    """Return the bytes of one tensor."""
    leaf = tree.layout.index[name]
    return tree.block(leaf.start, leaf.stop)


def gather(tree: Tree, out: Floats) -> None:
    """Write all weights into the beginning of `out`."""
    for segment, place in _segments(tree.layout):
        for block in segment.blocks():
            first = place + block.first - segment.first
            wide = to_float(tree.block(block.start, block.stop), block.dtype, np.float32)
            out[first : first + wide.size] = wide


def row(tree: Tree) -> Floats:
    """Return all weights of a tree: shape (count,)."""
    out = np.empty(count_floats(tree.layout), np.float32)
    gather(tree, out)
    return out


def with_row(tree: Tree, values: Floats) -> Tree:
    """Return the tree with other weights."""
    out = np.array(tree.buffer)
    scatter(values, tree.layout, out)
    return Tree(tree.layout, out)


def scatter(values: Floats, layout: Layout, out: Bytes) -> None:
    """Round the weights of `gather` into a buffer of that layout. Its other tensors stay as they are."""
    for segment, place in _segments(layout):
        for block in segment.blocks():
            first = place + block.first - segment.first
            count = (block.stop - block.start) // block.itemsize
            from_float(values[first : first + count], block.dtype, out[block.start : block.stop])


def put_others(tree: Tree, packed: Layout, out: Bytes) -> None:
    """Copy a tree's statistics and whole numbers into the buffer of its packed form."""
    for inner, outer in _others(tree.layout, packed):
        out[outer.start : outer.stop] = tree.block(inner.start, inner.stop)


def take_others(packed: Tree, layout: Layout, out: Bytes) -> None:
    """Copy them back into a buffer of the tree's own layout."""
    for inner, outer in _others(layout, packed.layout):
        out[inner.start : inner.stop] = packed.block(outer.start, outer.stop)


def _segments(layout: Layout) -> list[tuple[Segment, int]]:
    """Return each run of weights, and the number of weights before it."""
    found, place = [], 0
    for segment in layout.segments:
        if segment.is_weight:
            found.append((segment, place))
            place += (segment.stop - segment.start) // segment.itemsize
    return found


def _others(layout: Layout, packed: Layout) -> list[tuple[Leaf, Leaf]]:
    """Return the place of each statistic and integer tensor in a tree, and in the packed form."""
    return [(leaf, packed.index[f"={leaf.name}"]) for leaf in layout.leaves if not layout.is_weight(leaf)]
