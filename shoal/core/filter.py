"""What happens to trees on their way: a list of filters, applied in order by the sender and backwards by the receiver.

A filter never changes what an algorithm sees of a body's form: it turns one layout into another, known to both ends
from the job alone, so that a filtered body is checked byte for byte like any other, before anything is made of it.
A body that comes with a base (`Order.base`) is filtered as a difference to it: what both ends hold is not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import InvalidPayload
from shoal.core.tree import Layout, Slots, Tree, add, same_layout, sub


@dataclass(frozen=True)
class Filter:
    """The one base class: fields are configuration. It holds no state."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""

    def layout(self, layout: Layout) -> Layout:
        """The layout of what is sent for a tree of that layout."""
        return layout

    def encode(self, tree: Tree, seed: int) -> Tree:
        """What is sent for a tree. `seed` is the only source of randomness."""
        return tree

    def decode(self, tree: Tree, layout: Layout) -> Tree:
        """The tree of that layout, as near to the sent one as the filter allows. Raises `InvalidPayload`."""
        return tree


Filters = Sequence[Filter]


def packed_layout(filters: Filters, layout: Layout) -> Layout:
    """The layout that a tree has on the wire."""
    for one in filters:
        layout = one.layout(layout)
    return layout


def pack_tree(filters: Filters, tree: Tree, seed: int) -> Tree:
    """A tree as it is sent."""
    for one in filters:
        tree = one.encode(tree, seed)
    return tree


def unpack_tree(filters: Filters, tree: Tree, layout: Layout) -> Tree:
    """A tree as it is received. `layout` is the one before packing. Raises `InvalidPayload` for one of another form."""
    layouts = [layout]
    for one in filters:
        layouts.append(one.layout(layouts[-1]))
    same_layout(layouts[-1], tree.layout)
    for one, before in zip(reversed(filters), reversed(layouts[:-1]), strict=True):
        tree = one.decode(tree, before)
    return tree


def pack(filters: Filters, slots: Slots, seed: int) -> Slots:
    """All trees of an update as they are sent; numbers stay."""
    return {n: pack_tree(filters, value, seed) if isinstance(value, Tree) else value for n, value in slots.items()}


def packed(filters: Filters, layouts: dict[str, Layout | None]) -> dict[str, Layout | None]:
    """The layouts of `pack`."""
    return {n: packed_layout(filters, one) if one is not None else None for n, one in layouts.items()}


def unpack(filters: Filters, slots: Slots, layouts: dict[str, Layout | None]) -> Slots:
    """The slots of `pack` as they were. Raises `InvalidPayload` unless they have exactly these slots."""
    if slots.keys() != layouts.keys():
        raise InvalidPayload(f"slots {sorted(slots)} instead of {sorted(layouts)}", code="payload.slots")
    found: Slots = {}
    for name, value in slots.items():
        layout = layouts[name]
        if isinstance(value, Tree) != (layout is not None):
            raise InvalidPayload(f"slot {name!r} is of the wrong kind", code="payload.slots")
        found[name] = unpack_tree(filters, value, layout) if isinstance(value, Tree) and layout is not None else value
    return found


def pack_onto(filters: Filters, model: Tree, base: Tree, seed: int) -> tuple[Tree, Tree]:
    """(what is sent of a model to those who hold `base`, the model that they will have)."""
    sent = pack_tree(filters, sub(model, base), seed)
    return sent, unpack_onto(filters, sent, base)


def unpack_onto(filters: Filters, sent: Tree, base: Tree) -> Tree:
    """The model of `pack_onto`: the same bits on every machine, for it takes one rounded sum per number."""
    return add(base, unpack_tree(filters, sent, base.layout))
