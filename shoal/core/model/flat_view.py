"""All floats of a tree as one row of float32, and its whole numbers beside them: what filters work on.

The task is that of the layout. Whole numbers of a model (a counter) have no nearness, so filters send them as they
are, under the name of their tensor with "=" before it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.core.model.tree import FLOATS, Bytes, Layout, Leaf, Segment, Tree, from_float, to_float

Floats = npt.NDArray[np.float32]


def count_floats(layout: Layout) -> int:
    """Return the number of floats in a tree of that layout."""
    return sum(leaf.elements for leaf in layout.leaves if leaf.dtype in FLOATS)


def whole_entries(layout: Layout) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return the integer tensors as entries of a packed layout."""
    return [(f"={leaf.name}", leaf.dtype, leaf.shape) for leaf in layout.leaves if leaf.dtype not in FLOATS]


def part(tree: Tree, name: str) -> Bytes:
    """Return the bytes of one tensor."""
    leaf = tree.layout.index[name]
    return tree.block(leaf.start, leaf.stop)


def gather(tree: Tree, out: Floats) -> None:
    """Write all floats into the beginning of `out`."""
    for segment, place in _segments(tree.layout):
        for block in segment.blocks():
            first = place + block.first - segment.first
            wide = to_float(tree.block(block.start, block.stop), block.dtype, np.float32)
            out[first : first + wide.size] = wide


def row(tree: Tree) -> Floats:
    """Return all floats of a tree: shape (count,)."""
    out = np.empty(count_floats(tree.layout), np.float32)
    gather(tree, out)
    return out


def with_row(tree: Tree, values: Floats) -> Tree:
    """Return the tree with other floats."""
    out = np.array(tree.buffer)
    scatter(values, tree.layout, out)
    return Tree(tree.layout, out)


def scatter(values: Floats, layout: Layout, out: Bytes) -> None:
    """Round the floats of `gather` into a buffer of that layout. Its whole numbers stay as they are."""
    for segment, place in _segments(layout):
        for block in segment.blocks():
            first = place + block.first - segment.first
            count = (block.stop - block.start) // block.itemsize
            from_float(values[first : first + count], block.dtype, out[block.start : block.stop])


def put_whole(tree: Tree, packed: Layout, out: Bytes) -> None:
    """Copy a tree's whole numbers into the buffer of its packed form."""
    for inner, outer in _whole(tree.layout, packed):
        out[outer.start : outer.stop] = tree.block(inner.start, inner.stop)


def take_whole(packed: Tree, layout: Layout, out: Bytes) -> None:
    """Copy them back into a buffer of the tree's own layout."""
    for inner, outer in _whole(layout, packed.layout):
        out[inner.start : inner.stop] = packed.block(outer.start, outer.stop)


def _segments(layout: Layout) -> list[tuple[Segment, int]]:
    """Return each run of floats, and the number of floats before it."""
    found, place = [], 0
    for segment in layout.segments:
        if segment.is_float:
            found.append((segment, place))
            place += (segment.stop - segment.start) // segment.itemsize
    return found


def _whole(layout: Layout, packed: Layout) -> list[tuple[Leaf, Leaf]]:
    """Return each integer tensor's place in a tree, and in the packed form."""
    return [(leaf, packed.index[f"={leaf.name}"]) for leaf in layout.leaves if leaf.dtype not in FLOATS]
