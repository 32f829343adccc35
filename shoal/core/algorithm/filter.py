"""Filters: transformations of trees on their way, applied in order by the sender and backwards by the receiver.

A filter does not change an algorithm's view of a blob: it turns one layout into another, known to both ends from the
job alone, so a filtered blob is checked byte for byte like any other before it is used. A blob with a reference
(`Task.base`) is filtered as a difference to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from shoal.core.errors import InvalidJob, InvalidPayload, message_of
from shoal.core.errors.ranges import check_ranges
from shoal.core.model.flat_view import row, with_row
from shoal.core.model.tree import Layout, Slots, Tree, add, same_layout, sub

Stage = Literal["", "choice", "precision"]
"""Kind of filter: it chooses among numbers, or it rounds them. The empty one fits anywhere."""

RESIDUAL = "residual."
"""Begins the slots of a node's private memory that hold what filters have left out of its updates."""


@dataclass(frozen=True)
class Filter:
    """The one base class: fields are configuration. It holds no state."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    stage: ClassVar[Stage] = ""
    """Place in a list."""
    error_feedback: ClassVar[bool] = False
    """True if what it leaves out must be sent later: without that it would never arrive."""

    sends_differences: ClassVar[bool] = False
    """True if models, too, are sent as differences: to the version before, for nodes that hold it."""

    def __post_init__(self) -> None:
        """Check the fields' ranges. Raises `InvalidJob`."""
        check_ranges(self)

    @property
    def suits_models(self) -> bool:
        """True if whole models may pass through it, and not only small changes of a model: see `model_filters`."""
        return False

    def layout(self, layout: Layout) -> Layout:
        """Return the layout of the encoded form of a tree of that layout."""
        return layout

    def encode(self, tree: Tree, seed: int) -> Tree:
        """Encode a tree. `seed` is the only source of randomness."""
        return tree

    def decode(self, tree: Tree, layout: Layout) -> Tree:
        """Decode to a tree of that layout, as near to the original as the filter allows. Raises `InvalidPayload`."""
        return tree


Filters = Sequence[Filter]


STAGES: tuple[Stage, ...] = ("choice", "precision")
"""Order of stages, each at most once: rounding first would leave nothing to choose by."""


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
        raise InvalidJob(f"filters: {names} cannot be undone: {message_of(error)}", code="job.filter") from None


def model_filters(filters: Filters) -> tuple[Filter, ...]:
    """Return the filters that peers apply to the models which they show each other.

    Two peers share no reference, so whole models are sent: filters that round each number a little may be used, filters
    that leave numbers out may not.
    """
    return tuple(one for one in filters if one.suits_models)


def packed_layout(filters: Filters, layout: Layout) -> Layout:
    """Return the layout of a tree on the wire."""
    for one in filters:
        layout = one.layout(layout)
    return layout


def pack_tree(filters: Filters, tree: Tree, seed: int) -> Tree:
    """Encode a tree by all filters."""
    for one in filters:
        tree = one.encode(tree, seed)
    return tree


def unpack_tree(filters: Filters, tree: Tree, layout: Layout) -> Tree:
    """Decode a tree. `layout` is the one before packing. Raises `InvalidPayload` for another form."""
    layouts = [layout]
    for one in filters:
        layouts.append(one.layout(layouts[-1]))
    same_layout(layouts[-1], tree.layout)
    for one, before in zip(reversed(filters), reversed(layouts[:-1]), strict=True):
        tree = one.decode(tree, before)
    return tree


def pack(filters: Filters, slots: Slots, seed: int) -> Slots:
    """Encode all trees of an update; numbers stay."""
    return {n: pack_tree(filters, value, seed) if isinstance(value, Tree) else value for n, value in slots.items()}


def without_residuals(memory: Slots) -> Slots:
    """Return a node's private memory without what its filters have kept back."""
    return {name: value for name, value in memory.items() if not name.startswith(RESIDUAL)}


def pack_with_feedback(filters: Filters, slots: Slots, memory: Slots, seed: int) -> tuple[Slots, Slots]:
    """Return (the encoded update with what was left out of earlier ones, what is left out now).

    Error feedback (Stich, Cordonnier, Jaggi: "Sparsified SGD with Memory", NeurIPS 2018, Algorithm 1): with the memory
    m and the update g, s = pack(m + g) is sent, and m becomes m + g - unpack(s). Both are of one node and of the same
    form; a memory of another form belongs to another model, and is dropped.
    """
    if not any(one.error_feedback for one in filters):
        return pack(filters, slots, seed), {}
    sent, left = dict(slots), dict[str, Tree | float]()
    for name, tree in slots.items():
        if isinstance(tree, Tree):
            sent[name], left[RESIDUAL + name] = _pack_one(filters, tree, memory.get(RESIDUAL + name), seed)
    return sent, left


def _pack_one(filters: Filters, tree: Tree, residual: Tree | float | None, seed: int) -> tuple[Tree, Tree]:
    wanted = row(tree)
    if isinstance(residual, Tree):
        before = row(residual)
        wanted = wanted + before if before.shape == wanted.shape else wanted
    sent = pack_tree(filters, with_row(tree, wanted), seed)
    return sent, Tree.of({"floats": wanted - row(unpack_tree(filters, sent, tree.layout))})


def packed_layouts(filters: Filters, layouts: dict[str, Layout | None]) -> dict[str, Layout | None]:
    """Return the layouts of `pack`."""
    return {n: packed_layout(filters, one) if one is not None else None for n, one in layouts.items()}


def unpack(filters: Filters, slots: Slots, layouts: dict[str, Layout | None]) -> Slots:
    """Decode the slots of `pack`. Raises `InvalidPayload` unless they have exactly these slots."""
    if slots.keys() != layouts.keys():
        raise InvalidPayload(f"slots {sorted(slots)} instead of {sorted(layouts)}", code="payload.slots")
    found: Slots = {}
    for name, value in slots.items():
        layout = layouts[name]
        if isinstance(value, Tree) != (layout is not None):
            raise InvalidPayload(f"slot {name!r} is of the wrong kind", code="payload.slots")
        found[name] = unpack_tree(filters, value, layout) if isinstance(value, Tree) and layout is not None else value
    return found


def pack_difference(filters: Filters, model: Tree, base: Tree, seed: int) -> tuple[Tree, Tree]:
    """Return (the encoded difference for holders of `base`, the model that they will have).

    Filters that need a memory are left out: what they keep back could only come with the next update, but here the
    next difference may be to another reference.
    """
    sent = pack_tree(_onto(filters), sub(model, base), seed)
    return sent, unpack_difference(filters, sent, base)


def unpack_difference(filters: Filters, sent: Tree, base: Tree) -> Tree:
    """Return the model of `pack_onto`, with the same bits on every machine, because it takes one rounded sum per
    number."""
    return add(base, unpack_tree(_onto(filters), sent, base.layout))


def _onto(filters: Filters) -> Filters:
    return [one for one in filters if not one.error_feedback]
