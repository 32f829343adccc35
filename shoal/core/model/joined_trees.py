"""Several trees as one, so that what mixes a model mixes the moments beside it by the same numbers."""

from __future__ import annotations

import numpy as np

from shoal.core.model.tree import Layout, Leaf, Slots, Tree


def join_trees(slots: Slots) -> Tree:
    """Return all trees of some slots as one. The model alone is returned as it is."""
    model, trees = slots["model"], {slot: value for slot, value in slots.items() if isinstance(value, Tree)}
    assert isinstance(model, Tree)
    if len(trees) == 1:
        return model
    leaves = [(_name(slot, leaf), leaf, tree) for slot, tree in trees.items() for leaf in tree.layout.leaves]
    statistics = [_name(slot, leaf) for slot, tree in trees.items() for leaf in _statistics(tree.layout)]
    entries = ((name, leaf.dtype, leaf.shape) for name, leaf, _ in leaves)
    layout = Layout.of(entries, model.layout.base_model, statistics)
    buffer = np.empty(layout.nbytes, np.uint8)
    for name, leaf, tree in leaves:
        place = layout.index[name]
        buffer[place.start : place.stop] = tree.block(leaf.start, leaf.stop)
    return Tree(layout, buffer)


def split_trees(joined: Tree, slots: Slots) -> Slots:
    """Return `slots` with the trees that `join_trees` has made one."""
    trees = {slot: value.layout for slot, value in slots.items() if isinstance(value, Tree)}
    return {
        **slots,
        **{slot: _part(joined, slot, layout) if len(trees) > 1 else joined for slot, layout in trees.items()},
    }


def _part(joined: Tree, slot: str, layout: Layout) -> Tree:
    buffer = np.empty(layout.nbytes, np.uint8)
    for leaf in layout.leaves:
        place = joined.layout.index[_name(slot, leaf)]
        buffer[leaf.start : leaf.stop] = joined.block(place.start, place.stop)
    return Tree(layout, buffer)


def _statistics(layout: Layout) -> list[Leaf]:
    return [leaf for leaf in layout.leaves if leaf.name in layout.statistics]


def _name(slot: str, leaf: Leaf) -> str:
    return leaf.name if slot == "model" else f"@{slot}/{leaf.name}"
