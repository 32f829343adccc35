"""Weighted sums of trees whose result does not depend on who came first.

Two kinds. "float64" adds in double precision: any order of arrival gives the same mean to about 1e-15 of its size, and
rounding to float32 hides even that nearly always. "fixed" adds whole multiples of 2**-40 in int64, where addition is
associative: any order gives the same *bits*. Weights are added as exact fractions in both.

A sum owns eight bytes per element and nothing else; `mean_onto` writes its result into that same memory, so a
coordinator needs two float32 models' worth of memory for a round, whatever the number of clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import isfinite
from typing import Literal

import numpy as np

from shoal.core.errors import Refused
from shoal.core.tree import BLOCK_ELEMENTS, DTYPES, Layout, Segment, Slots, Tree, from_float, same_layout, to_float

SumKind = Literal["float64", "fixed"]

FIXED_STEP = 2.0**-40
"""The grain of fixed-point sums."""

FIXED_LIMIT = 2.0**22
"""The greatest |weight * value| summed over all reports that int64 certainly holds, with a factor of two in hand."""

FLOAT_LIMIT = 2.0**1000
"""The same for double precision, where a sum must not become infinite."""


class TreeSum:
    """`sum_i w_i * t_i` of trees with one layout; whole numbers: the greatest value."""

    def __init__(self, layout: Layout, kind: SumKind = "float64") -> None:
        self.layout, self.kind = layout, kind
        self.weight = Fraction(0)
        self._bound = 0.0  # of any |sum|
        self._cells = np.zeros(layout.elements * 8, np.uint8)
        self._scratch = np.empty(min(BLOCK_ELEMENTS, layout.elements), np.float64)
        for segment in layout.segments:
            if not segment.is_float:
                self._view(segment, "<i8").fill(np.iinfo(np.int64).min)

    def _view(self, block: Segment, kind: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        count = (block.stop - block.start) // block.itemsize
        return self._cells[block.first * 8 : (block.first + count) * 8].view(kind)

    def add(self, tree: Tree, weight: float, norm: float) -> None:
        """Add `weight * tree`. `norm` is at least the tree's greatest magnitude (its Euclidean norm is).

        Raises `Refused`, with the sum unchanged, when it could overflow.
        """
        self.check(tree, weight, norm)
        self._bound += abs(weight) * norm
        for segment in self.layout.segments:
            for block in segment.blocks():
                self._add_block(block, tree.block(block.start, block.stop), weight)
        self.weight += Fraction(weight)

    def check(self, tree: Tree, weight: float, norm: float) -> None:
        """Raise what `add` would raise, and change nothing."""
        same_layout(self.layout, tree.layout)
        limit = FIXED_LIMIT if self.kind == "fixed" else FLOAT_LIMIT
        if not self._bound + abs(weight) * norm < limit:
            raise Refused(
                f"a {self.kind} sum holds magnitudes up to {limit:g} (weight times norm, over all reports)",
                code="sum.overflow",
                hint='set sums = "float64" in the job' if self.kind == "fixed" else "use smaller weights",
            )

    def _add_block(self, block: Segment, data: np.ndarray[tuple[int], np.dtype[np.uint8]], weight: float) -> None:
        if not block.is_float:
            cells = self._view(block, "<i8")
            np.maximum(cells, data.view(DTYPES[block.dtype]).astype(np.int64), out=cells)
            return
        wide = self._scratch[: data.size // block.itemsize]
        wide[:] = to_float(data, block.dtype)
        wide *= weight
        if self.kind == "fixed":
            wide *= 1.0 / FIXED_STEP
            np.rint(wide, out=wide)
            self._view(block, "<i8")[:] += wide.astype(np.int64)
        else:
            self._view(block, "<f8")[:] += wide

    def gap(self) -> float:
        """The squared Euclidean norm of the mean of the floats. Changes nothing."""
        total = 0.0
        for segment in self.layout.segments:
            for block in segment.blocks() if segment.is_float else ():
                cells = self._view(block, "<i8" if self.kind == "fixed" else "<f8").astype(np.float64)
                total += float(np.dot(cells, cells))
        return total * (FIXED_STEP if self.kind == "fixed" else 1.0) ** 2 / float(self.weight) ** 2

    def mean_onto(self, base: Tree | None = None, rate: float = 1.0) -> Tree:
        """`base + rate * sum / weight` (base None: zero), made in the sum's own memory, which this uses up.

        Safe in place: an element's result is at most as wide as its eight-byte cell and stands no later.
        """
        factor = rate / float(self.weight) * (FIXED_STEP if self.kind == "fixed" else 1.0)
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # a model that leaves its type's range is data, not a warning
            for segment in self.layout.segments:
                for block in segment.blocks():
                    self._finish_block(block, base, factor)
        tree = Tree(self.layout, self._cells[: self.layout.nbytes])
        del self._cells
        return tree

    def _finish_block(self, block: Segment, base: Tree | None, factor: float) -> None:
        place = self._cells[block.start : block.stop]
        old = base.block(block.start, block.stop) if base is not None else None
        if not block.is_float:
            whole = self._view(block, "<i8").copy()
            if old is not None:
                np.maximum(whole, old.view(DTYPES[block.dtype]).astype(np.int64), out=whole)
            place.view(DTYPES[block.dtype])[:] = whole.astype(DTYPES[block.dtype])
            return
        wide = self._view(block, "<i8" if self.kind == "fixed" else "<f8").astype(np.float64)
        wide *= factor
        if old is not None:
            wide += to_float(old, block.dtype)
        from_float(wide, block.dtype, place)


@dataclass
class Totals:
    """What a round has gathered: the weighted sum of each slot, and the weight, exact in any order."""

    kind: SumKind = "float64"
    weight: Fraction = Fraction(0)
    count: int = 0
    """Of reports."""
    trees: dict[str, TreeSum] = field(default_factory=dict)
    numbers: dict[str, Fraction] = field(default_factory=dict)
    members: frozenset[str] | None = None
    """The job's nodes when the version closes, present or lost, without those that left; None: not known."""

    def drop(self, *names: str) -> None:
        """Forget what was added to these slots, so that they can be added anew."""
        for name in names:
            self.trees.pop(name, None)
            self.numbers.pop(name, None)

    def add(self, slots: Slots, weight: float, norm: float) -> None:
        """Add `weight * slots`. Either all of it is added or, when something is refused, nothing."""
        trees = {name: value for name, value in slots.items() if isinstance(value, Tree)}
        sums = {name: self.trees.get(name) or TreeSum(tree.layout, self.kind) for name, tree in trees.items()}
        for name, value in slots.items():
            if isinstance(value, Tree):
                sums[name].check(value, weight, norm)
            elif not isfinite(value):
                raise Refused(f"{name} is {value}, which cannot be averaged", code="payload.not-finite")
        self.trees |= sums
        for name, value in slots.items():
            if isinstance(value, Tree):
                sums[name].add(value, weight, norm)
            else:
                self.numbers[name] = self.numbers.get(name, Fraction(0)) + Fraction(weight) * Fraction(value)
        self.weight += Fraction(weight)
        self.count += 1

    def gap(self, name: str) -> float:
        """The squared Euclidean norm of the weighted mean of a tree slot; 0 of none. Changes nothing."""
        return self.trees[name].gap() if name in self.trees else 0.0

    def mean(self, name: str) -> Tree:
        """The weighted mean of a tree slot; uses the sum up."""
        return self.trees.pop(name).mean_onto()

    def mean_onto(self, name: str, base: Tree, rate: float = 1.0) -> Tree:
        """`base + rate * mean`, in the sum's own memory, which this uses up."""
        return self.trees.pop(name).mean_onto(base, rate)

    def mean_number(self, name: str) -> float:
        """The weighted mean of a number slot."""
        return float(self.numbers[name] / self.weight)
