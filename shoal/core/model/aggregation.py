"""Weighted sums of trees whose result does not depend on who came first.

Two kinds. "float64" adds in double precision: any order of arrival gives the same mean to about 1e-15 of its size, and
rounding to float32 hides even that nearly always. "fixed" adds whole multiples of 2**-40 in int64, where addition is
associative: any order gives the same *bits*. Weights are added as exact fractions in both.

A sum owns eight bytes for each float and what whole numbers have in the tree, nothing else; `mean_onto` writes its
result into that same memory, so a coordinator needs two float32 models' worth of memory for a round, whatever the
number of clients.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from math import fsum, isfinite
from typing import Any, Literal

import numpy as np

from shoal.core.errors import Refused
from shoal.core.model.stack import Stack, StackRow
from shoal.core.model.tree import (
    BLOCK_ELEMENTS,
    DTYPES,
    Layout,
    Segment,
    Slots,
    Tree,
    from_float,
    greatest_statistic,
    same_layout,
    to_float,
)

SumKind = Literal["float64", "fixed"]

FIXED_STEP = 2.0**-40
"""The grain of fixed-point sums."""

FIXED_LIMIT = 2.0**22
"""The greatest |weight * value| summed over all reports that int64 certainly holds, with a factor of two in hand."""

FLOAT_LIMIT = 2.0**1000
"""The same for double precision, where a sum must not become infinite."""


Exact = Fraction | int


def exact(value: float) -> Exact:
    """Return a number without rounding: a whole one as an integer, which is much faster to add."""
    return int(value) if float(value).is_integer() else Fraction(value)


def _cell_bytes(segment: Segment) -> int:
    """Return the bytes of a segment's cells, filled up so that the next cells are aligned."""
    count = (segment.stop - segment.start) // segment.itemsize
    return count * 8 if segment.is_float else -(-count * segment.itemsize // 8) * 8


class TreeSum:
    """`sum_i w_i * t_i` of trees with one layout; whole numbers: the greatest value.

    Statistics are values and not differences, so their mean is the result, whatever it is put onto.
    """

    def __init__(self, layout: Layout, kind: SumKind = "float64") -> None:
        self.layout, self.kind = layout, kind
        self.weight: Exact = 0
        self.bound = 0.0  # of any |sum|
        self._firsts = [segment.first for segment in layout.segments]
        self._places = list(accumulate(map(_cell_bytes, layout.segments), initial=0))  # of segments, and the end
        self._cells = np.empty(self._places[-1], np.uint8)
        self._is_empty = True  # the first tree is written, which costs half of zeros and an addition
        self._scratch = np.empty(min(BLOCK_ELEMENTS, layout.elements), np.float64)
        self._rows: tuple[Stack, list[float]] | None = None  # rows whose weighted sum is not added yet

    def _view(self, block: Segment) -> np.ndarray[tuple[int], np.dtype[Any]]:
        """Return the cells of a block: sums of floats, or the greatest whole numbers."""
        kind, number = self._kind_of(block), bisect_right(self._firsts, block.first) - 1
        start = self._places[number] + (block.first - self._firsts[number]) * kind.itemsize
        return self._cells[start : start + (block.stop - block.start) // block.itemsize * kind.itemsize].view(kind)

    def _kind_of(self, block: Segment) -> np.dtype[Any]:
        if not block.is_float:
            return DTYPES[block.dtype]
        return DTYPES["I64" if self.kind == "fixed" else "F64"]

    def add(self, tree: Tree, weight: float, norm: float) -> None:
        """Add `weight * tree`. `norm` is at least the tree's greatest magnitude (its Euclidean norm is).

        Raises `Refused`, with the sum unchanged, when it could overflow.
        """
        self.check(tree, weight, norm)
        self.bound += abs(weight) * norm
        if isinstance(tree.known, StackRow) and self.kind == "float64":
            self._note_row(tree.known, weight)
        else:
            for segment in self.layout.segments:
                for block in segment.blocks():
                    self._add_block(block, tree.block(block.start, block.stop), weight)
            self._is_empty = False
        self.weight += exact(weight)

    def _note_row(self, row: StackRow, weight: float) -> None:
        """Note the weight of a row, to add all rows of its stack at once."""
        if self._rows is None or self._rows[0] is not row.stack:
            self._add_rows()
            self._rows = row.stack, [0.0] * len(row.stack)
        self._rows[1][row.index] += weight

    def _add_rows(self) -> None:
        if self._rows is not None:
            stack, weights = self._rows
            (segment,) = self.layout.segments  # as in every layout of a stack
            self._merge(segment, stack.weighted_sum(weights), np.add)
            self._is_empty, self._rows = False, None

    def check(self, tree: Tree, weight: float, norm: float) -> None:
        """Raise what `add` would raise, and change nothing."""
        same_layout(self.layout, tree.layout)
        check_magnitude(self.kind, self.bound + abs(weight) * norm)

    def _add_block(self, block: Segment, data: np.ndarray[tuple[int], np.dtype[np.uint8]], weight: float) -> None:
        if not block.is_float:
            self._merge(block, data.view(DTYPES[block.dtype]), np.maximum)
            return
        wide = self._scratch[: data.size // block.itemsize]
        np.copyto(wide, data.view("<f4") if block.dtype == "F32" else to_float(data, block.dtype))
        wide *= weight
        if self.kind == "fixed":
            wide *= 1.0 / FIXED_STEP
            np.rint(wide, out=wide)
            self._merge(block, wide.astype(np.int64), np.add)
        else:
            self._merge(block, wide, np.add)

    def _merge(self, block: Segment, new: np.ndarray[Any, Any], how: np.ufunc) -> None:
        """Combine a block's cells with new values by `how`; the first values replace what the memory held."""
        cells = self._view(block)
        if self._is_empty:
            cells[:] = new
        else:
            how(cells, new, out=cells)

    def gap(self, more: Sequence[tuple[Tree, float]] = ()) -> float:
        """Return the squared Euclidean norm of the mean of the weights; `more`: as if these trees had been added with
        these weights. Changes nothing."""
        self._add_rows()
        unit, total = FIXED_STEP if self.kind == "fixed" else 1.0, 0.0
        for segment in self.layout.segments:
            for block in segment.blocks() if segment.is_weight else ():
                count = (block.stop - block.start) // block.itemsize
                cells = np.zeros(count) if self._is_empty else self._view(block).astype(np.float64)
                for tree, weight in more:
                    cells += to_float(tree.block(block.start, block.stop), block.dtype) * (weight / unit)
                total += float(np.dot(cells, cells))
        return total * unit**2 / fsum([float(self.weight), *(weight for _, weight in more)]) ** 2

    def mean_onto(self, base: Tree | None = None, rate: float = 1.0) -> Tree:
        """Return `base + rate * sum / weight` (base None: zero), made in the sum's own memory, which this uses up.
        Statistics are `sum / weight`.

        Safe in place: an element's result is at most as wide as its cell and stands no later.
        """
        self._add_rows()
        unit = FIXED_STEP if self.kind == "fixed" else 1.0
        factor, mean = rate / float(self.weight) * unit, 1.0 / float(self.weight) * unit
        # a model that leaves its type's range is data, not a warning
        with np.errstate(over="ignore", invalid="ignore"):
            for segment in self.layout.segments:
                for block in segment.blocks():
                    if block.is_statistic:
                        self._finish_block(block, None, mean)
                    else:
                        self._finish_block(block, base, factor)
        tree = Tree(self.layout, self._cells[: self.layout.nbytes])
        del self._cells
        return tree

    def _finish_block(self, block: Segment, base: Tree | None, factor: float) -> None:
        place = self._cells[block.start : block.stop]
        old = base.block(block.start, block.stop) if base is not None else None
        if not block.is_float:
            whole = self._view(block).copy()
            if old is not None:
                np.maximum(whole, old.view(DTYPES[block.dtype]), out=whole)
            place.view(DTYPES[block.dtype])[:] = whole
            return
        wide = self._scratch[: (block.stop - block.start) // block.itemsize]
        np.multiply(self._view(block), factor, out=wide)
        if old is not None:
            wide += to_float(old, block.dtype)
        from_float(wide, block.dtype, place)


def check_magnitude(kind: SumKind, bound: float) -> None:
    """Raise `Refused` if a sum cannot hold magnitudes up to `bound`."""
    limit = FIXED_LIMIT if kind == "fixed" else FLOAT_LIMIT
    if not bound < limit:
        raise Refused(
            f"a {kind} sum holds magnitudes up to {limit:g} (weight times norm, over all reports)",
            code="sum.overflow",
            hint='set aggregation_precision = "float64" in the job' if kind == "fixed" else "use smaller weights",
        )


def check_numbers(slots: Slots) -> None:
    """Raise `Refused` for a number that is not finite."""
    for name, value in slots.items():
        if not isinstance(value, Tree) and not isfinite(value):
            raise Refused(f"{name} is {value}, which cannot be averaged", code="payload.not-finite")


def bound_of(norm: float, trees: Iterable[Tree]) -> float:
    """Return a bound on every number of some trees, of which `norm` bounds the weights."""
    for tree in trees:
        if tree.layout.statistics:
            norm = max(norm, greatest_statistic(tree))
    return norm


@dataclass
class Totals:
    """A round's totals: the weighted sum of each slot, and the weight, exact in any order."""

    kind: SumKind = "float64"
    weight: Exact = 0
    count: int = 0
    """Number of reports."""
    trees: dict[str, TreeSum] = field(default_factory=dict)
    numbers: dict[str, Exact] = field(default_factory=dict)
    members: frozenset[str] | None = None
    """The job's nodes when the version closes, present or lost, without those that left; None: not known."""

    def drop(self, *names: str) -> None:
        """Forget the sums of these slots, so that they can be added again."""
        for name in names:
            self.trees.pop(name, None)
            self.numbers.pop(name, None)

    def add(self, slots: Slots, weight: float, norm: float) -> None:
        """Add `weight * slots`. Either all of it is added or, when something is refused, nothing."""
        trees = {name: value for name, value in slots.items() if isinstance(value, Tree)}
        norm, sums = bound_of(norm, trees.values()), dict[str, TreeSum]()
        for name, tree in trees.items():
            sums[name] = self.trees.get(name) or TreeSum(tree.layout, self.kind)
            sums[name].check(tree, weight, norm)
        check_numbers(slots)
        self.trees |= sums
        for name, value in slots.items():
            if isinstance(value, Tree):
                sums[name].add(value, weight, norm)
            else:
                self.numbers[name] = self.numbers.get(name, 0) + exact(weight) * exact(value)
        self.weight += exact(weight)
        self.count += 1

    def check(self, slots: Slots, weight: float, norm: float, more: float = 0.0) -> None:
        """Raise `Refused` if no sum can take `weight * slots` beside magnitudes up to `more`; if `more` is above 0,
        also beside what was added."""
        trees = [value for value in slots.values() if isinstance(value, Tree)]
        known = self.bound if more else 0.0
        check_magnitude(self.kind, known + more + abs(weight) * bound_of(norm, trees))
        check_numbers(slots)

    @property
    def bound(self) -> float:
        """Return a bound on the magnitudes of all sums."""
        return max((total.bound for total in self.trees.values()), default=0.0)

    def squared_mean_norm(self, name: str, more: Sequence[tuple[Slots, float]] = ()) -> float:
        """Return the squared Euclidean norm of the weighted mean of a tree slot, 0 if it is empty; `more`: as if these
        slots had been added with these weights. Changes nothing."""
        trees = [(tree, weight) for slots, weight in more if isinstance(tree := slots.get(name), Tree)]
        if name not in self.trees and not trees:
            return 0.0
        found = self.trees.get(name) or TreeSum(trees[0][0].layout, self.kind)
        return found.gap(trees)

    def mean(self, name: str) -> Tree:
        """Return the weighted mean of a tree slot; uses the sum up."""
        return self.trees.pop(name).mean_onto()

    def mean_onto(self, name: str, base: Tree, rate: float = 1.0) -> Tree:
        """Return `base + rate * mean`, in the sum's own memory, which this uses up."""
        return self.trees.pop(name).mean_onto(base, rate)

    def mean_number(self, name: str) -> float:
        """Return the weighted mean of a number slot."""
        return float(self.numbers[name] / self.weight)
