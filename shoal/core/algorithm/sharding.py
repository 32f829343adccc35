"""A parameter server whose model is split over k shards, each of which sums and steps a part of its own.

Li, Andersen, Park, Smola, Ahmed, Josifovski, Long, Shekita, Su: "Scaling Distributed Machine Learning with the
Parameter Server", OSDI 2014; Dean et al.: "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1, where each
shard applies updates, and keeps Adagrad's state, of its part alone. A method can be split if the next value of a weight
depends only on that weight, on its own sums and moments, and on numbers that all shards know: it says so by
`Algorithm.shardable`, and then k shards come to the same bits as one. If a method needs norms or products over the
model, shards tell their summand of each (`shoal.core.model.vector_parts`); the result is the same except for the order
of addition.

    part i of a tensor type with n numbers: from floor(i n / k) to floor((i + 1) n / k), in the order of the blob

`Shard` is the whole interface of one of them, so that it could run anywhere; here all run in the hub's process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.model.aggregation import SumKind, Totals, bound_of, exact
from shoal.core.model.tree import DTYPES, Bytes, Layout, Sliceable, Slots, Tree
from shoal.core.model.vector_parts import Each, Part, together

T = TypeVar("T")
Spans = dict[str, tuple[int, int]]
"""For each tensor in a part: the first of its numbers that belong to the part, and the first beyond."""

SHARDS_MAX = 256


def split_layout(layout: Layout, count: int) -> tuple[Spans, ...]:
    """Return the spans of each part: of each type and kind of number nearly the same amount."""
    parts: tuple[Spans, ...] = tuple({} for _ in range(count))
    for segment in layout.segments:
        total = (segment.stop - segment.start) // segment.itemsize
        edges = [segment.first + index * total // count for index in range(count + 1)]
        for leaf in layout.leaves:
            if not leaf.elements or not segment.start <= leaf.start < segment.stop:
                continue
            for part, (start, stop) in zip(parts, pairwise(edges), strict=True):
                first, last = max(start, leaf.first), min(stop, leaf.first + leaf.elements)
                if first < last:
                    part[leaf.name] = first - leaf.first, last - leaf.first
    return parts


class ByteRanges:
    """Ranges of some bytes, one after the other; read when they are asked for."""

    def __init__(self, data: Sliceable, ranges: Sequence[tuple[int, int]]) -> None:
        self._data, self._ranges = data, _merged(ranges)
        self._length = sum(stop - start for start, stop in self._ranges)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> Any:
        start, stop, _ = part.indices(len(self))
        found = [self._data[a:b] for a, b in self._within(start, stop)]
        return found[0] if len(found) == 1 else np.concatenate([_bytes(one) for one in found] or [_bytes(b"")])

    def _within(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        passed = 0
        for first, last in self._ranges:
            a, b = max(start, passed), min(stop, passed + last - first)
            if a < b:
                yield first + a - passed, first + b - passed
            passed += last - first


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges that touch."""
    found: list[tuple[int, int]] = []
    for start, stop in ranges:
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found


def _bytes(raw: Any) -> Bytes:
    return raw if isinstance(raw, np.ndarray) else np.frombuffer(raw, np.uint8)


def cut_tree(tree: Tree, spans: Spans) -> Tree:
    """Return the part of a tree that these spans name, as a view. A tensor that is cut has as many dimensions as
    before, of which the last alone is longer than 1."""
    ranges, entries = [], []
    for leaf in tree.layout.leaves:
        if leaf.name in spans:
            first, last = spans[leaf.name]
            size = DTYPES[leaf.dtype].itemsize
            ranges.append((leaf.start + first * size, leaf.start + last * size))
            shape = leaf.shape if last - first == leaf.elements else (*(1,) * (len(leaf.shape) - 1), last - first)
            entries.append((leaf.name, leaf.dtype, shape))
    layout = Layout.placed(entries, statistics=tree.layout.statistics & spans.keys())
    return Tree(layout, ByteRanges(tree.data, ranges))


def join_parts(layout: Layout, parts: Sequence[Tree], spans: Sequence[Spans]) -> Tree:
    """Join parts into the tree of that layout."""
    buffer = np.empty(layout.nbytes, np.uint8)
    for part, held in zip(parts, spans, strict=True):
        for leaf in part.layout.leaves:
            whole = layout.index[leaf.name]
            assert leaf.dtype == whole.dtype, f"{leaf.name} is {leaf.dtype} in a part, {whole.dtype} in the whole"
            start = whole.start + held[leaf.name][0] * DTYPES[leaf.dtype].itemsize
            buffer[start : start + leaf.stop - leaf.start] = part.block(leaf.start, leaf.stop)
    return Tree(layout, buffer)


class Shard:
    """One part of the server: it knows its part of every tree, and nothing of the others."""

    def __init__(self, kind: SumKind) -> None:
        self.totals = Totals(kind)

    def add(self, part: Slots, weight: float, norm: float) -> None:
        """Add `weight` times its part of an update; `norm` bounds every number of the whole. Raises `Refused`."""
        self.totals.add(part, weight, norm)

    def step(self, algorithm: Algorithm, part: Slots) -> Part[Slots]:
        """Compute its part of the next version from its part of the last. Uses its sums up."""
        return algorithm.step_part(part, self.totals)


class ShardedTotals(Totals):
    """A round's totals on k shards: the hub's side of them. Takes the place of `Totals`."""

    def __init__(self, kind: SumKind, layout: Layout, count: int, each: Each = map) -> None:
        super().__init__(kind)
        self._each, self._layout, self._spans = each, layout, split_layout(layout, count)
        self.shards = [Shard(kind) for _ in self._spans]

    def add(self, slots: Slots, weight: float, norm: float) -> None:
        """Add `weight * slots`, each shard its part. Either all of it is added or, when it is refused, nothing: shards
        refuse alike, by the bound and the numbers, which are the same for all."""
        bound = bound_of(norm, (value for value in slots.values() if isinstance(value, Tree)))
        self._do(lambda index: self.shards[index].add(self._cut(slots, index), weight, bound))
        self.weight += exact(weight)
        self.count += 1

    def _cut(self, slots: Slots, index: int) -> Slots:
        spans = self._spans[index]
        for name, value in slots.items():
            known = not isinstance(value, Tree) or value.layout.index.keys() <= self._layout.index.keys()
            assert known, f"{name} has other tensors than the model"
        return {name: cut_tree(value, spans) if isinstance(value, Tree) else value for name, value in slots.items()}

    def _do(self, do: Callable[[int], T]) -> list[T]:
        return list(self._each(do, range(len(self.shards))))

    @property
    def bound(self) -> float:
        """Return a bound on the magnitudes of all sums, which is the same in each shard."""
        return max(shard.totals.bound for shard in self.shards)

    def drop(self, *names: str) -> None:
        """Forget what was added to these slots, in each shard."""
        for shard in self.shards:
            shard.totals.drop(*names)

    def squared_mean_norm(self, name: str, more: Sequence[tuple[Slots, float]] = ()) -> float:
        """Return the squared Euclidean norm of the weighted mean of a tree slot, 0 if it is empty; `more`: as if these
        slots had been added with these weights. Changes nothing."""
        found = 0.0
        for index, shard in enumerate(self.shards):
            parts = [(self._cut(slots, index), weight) for slots, weight in more]
            found += shard.totals.squared_mean_norm(name, parts)
        return found

    def mean_onto(self, name: str, base: Tree, rate: float = 1.0) -> Tree:
        """Return `base + rate * mean` of a tree slot. Uses the sums up."""

        def one(index: int) -> Tree:
            return self.shards[index].totals.mean_onto(name, cut_tree(base, self._spans[index]), rate)

        return join_parts(base.layout, self._do(one), self._spans)

    def step(self, algorithm: Algorithm, slots: Slots) -> Slots:
        """Compute the next version's slots: each shard steps its part of each tree; numbers must agree. A tree that the
        last version did not have has the model's tensors."""
        for shard in self.shards:
            shard.totals.members = self.members
        steps = [shard.step(algorithm, self._cut(slots, index)) for index, shard in enumerate(self.shards)]
        parts = together(steps, self._each)
        found: Slots = {}
        for name, first in parts[0].items():
            values = [part[name] for part in parts]
            if not isinstance(first, Tree):
                assert all(value == first for value in values), f"shards disagree on {name}: {values}"
                found[name] = first
            else:
                old = slots.get(name)
                layout = old.layout if isinstance(old, Tree) else self._layout
                found[name] = join_parts(layout, [value for value in values if isinstance(value, Tree)], self._spans)
        return found
