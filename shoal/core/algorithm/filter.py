"""What happens to trees on their way: a list of filters, applied in order by the sender and backwards by the receiver.

A filter never changes what an algorithm sees of a body's form: it turns one layout into another, known to both ends
from the job alone, so that a filtered body is checked byte for byte like any other, before anything is made of it.
A body that comes with a base (`Order.base`) is filtered as a difference to it: what both ends hold is not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from shoal.core.errors import InvalidJob, InvalidPayload, message_of
from shoal.core.floats import row, with_row
from shoal.core.tree import Layout, Slots, Tree, add, same_layout, sub

Stage = Literal["", "choice", "precision"]
"""What a filter does: it chooses among numbers, or it rounds them. The empty one fits anywhere."""

UNSENT = "unsent."
"""Begins the slots of a node's private memory that hold what filters have left out of its updates."""


@dataclass(frozen=True)
class Filter:
    """The one base class: fields are configuration. It holds no state."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    stage: ClassVar[Stage] = ""
    """Where in a list it belongs."""
    feedback: ClassVar[bool] = False
    """Whether what it leaves out must be sent later: without that it would never arrive."""

    differences: ClassVar[bool] = False
    """Whether models, too, go as differences: to the version before, for nodes that hold it."""

    @property
    def whole(self) -> bool:
        """Whether a model can be used as it comes out, and not only a small change of one: see `for_models`."""
        return False

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


STAGES: tuple[Stage, ...] = ("choice", "precision")
"""In which order they come, each at most once: what is rounded first leaves nothing to choose by."""


def check_filters(filters: Filters) -> None:
    """Raise `InvalidJob` for a list that could not be undone, or would send noise."""
    staged = [one for one in filters if one.stage]
    for first, then in pairwise(staged):
        if STAGES.index(then.stage) > STAGES.index(first.stage):
            continue
        twice = first.stage == then.stage
        raise InvalidJob(
            f"filters: {first.name} before {then.name}",
            code="job.filter",
            hint=f"both set the {first.stage}: leave one out" if twice else f"{then.name} comes before {first.name}",
        )
    probe = Tree.of({"weight": np.linspace(-1, 1, 7, dtype=np.float32), "count": np.array([3])})
    try:
        again = unpack_tree(filters, pack_tree(filters, probe, 0), probe.layout)
        same_layout(probe.layout, again.layout)
    except (InvalidPayload, ValueError, TypeError, LookupError) as error:
        names = ", ".join(one.name for one in filters)
        raise InvalidJob(f"filters: {names} cannot undo what they do: {message_of(error)}", code="job.filter") from None


def for_models(filters: Filters) -> tuple[Filter, ...]:
    """Those of a list that peers put the models through which they show each other.

    Two peers of a mean hold no base that a difference could be to, so whole models go: what rounds each number a little
    may, what leaves numbers out may not.
    """
    return tuple(one for one in filters if one.whole)


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


def pack_all(filters: Filters, slots: Slots, memory: Slots, seed: int) -> tuple[Slots, Slots]:
    """(an update as it is sent with what was left out of the ones before, what is left out now).

    Error feedback (Stich, Cordonnier, Jaggi: "Sparsified SGD with Memory", NeurIPS 2018, Algorithm 1): with the memory
    m and the update g, s = pack(m + g) is sent, and m becomes m + g - unpack(s). Both are of one node and of the same
    form; a memory of another form belongs to another model, and is dropped.
    """
    if not any(one.feedback for one in filters):
        return pack(filters, slots, seed), {}
    sent, left = dict(slots), dict[str, Tree | float]()
    for name, tree in slots.items():
        if isinstance(tree, Tree):
            sent[name], left[UNSENT + name] = _pack_one(filters, tree, memory.get(UNSENT + name), seed)
    return sent, left


def _pack_one(filters: Filters, tree: Tree, unsent: Tree | float | None, seed: int) -> tuple[Tree, Tree]:
    wanted = row(tree)
    if isinstance(unsent, Tree):
        before = row(unsent)
        wanted = wanted + before if before.shape == wanted.shape else wanted
    sent = pack_tree(filters, with_row(tree, wanted), seed)
    return sent, Tree.of({"floats": wanted - row(unpack_tree(filters, sent, tree.layout))})


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
    """(what is sent of a model to those who hold `base`, the model that they will have).

    Filters that need a memory are left out: what they keep back could only come with the next update, but here the
    next difference may be to another base.
    """
    sent = pack_tree(_onto(filters), sub(model, base), seed)
    return sent, unpack_onto(filters, sent, base)


def unpack_onto(filters: Filters, sent: Tree, base: Tree) -> Tree:
    """The model of `pack_onto`: the same bits on every machine, for it takes one rounded sum per number."""
    return add(base, unpack_tree(_onto(filters), sent, base.layout))


def _onto(filters: Filters) -> Filters:
    return [one for one in filters if not one.feedback]
