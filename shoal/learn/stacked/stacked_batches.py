"""Batches of several learners at once, `[learner, example, …]`, which need not have equally many examples.

Each learner walks through its own batches, in the order in which it would alone. As learners do not depend on each
other, they need not be at the same batch of their passes: in each pass those with a full batch left take it together,
and then those whose last batches have the same other size. Where padding is allowed, last batches of similar sizes are
filled up to the largest of them. If only a few learners could take a batch together, each takes it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.algorithm.learner import TrainConfig
from shoal.learn.data.batches import TensorSource, moved, training_passes
from shoal.learn.data.passes import Places, cuts, steps_of
from shoal.learn.seeds import generator_of
from shoal.learn.training.torch_learner import TorchLearner

STEP_MIN = 4
"""Learners that make a step at once: on a processor, a stacked step takes as long as three to four steps alone."""

Indices = npt.NDArray[np.int64]

Rows = slice | Tensor | int
"""Some learners, by their rows in a stack: next to each other, with indices `int64[n]`, or one alone."""


class StackedBatch(NamedTuple):
    """A batch of each of some learners, of `sizes` examples, `int64[n]`; the tensors of one alone are `[example, …]`.

    `fraction`: how much of all training is done after it.
    """

    rows: Rows
    tensors: tuple[Tensor, ...]
    sizes: Indices
    fraction: float

    @property
    def weights(self) -> Tensor | None:
        """The weights of the examples in their batch's mean, `float32[n, examples]`; None if no batch is padded."""
        width = self.tensors[0].shape[1]
        if (self.sizes == width).all():
            return None
        is_own = np.arange(width) < self.sizes[:, None]
        return torch.from_numpy((is_own / self.sizes[:, None]).astype(np.float32)).to(self.tensors[0].device)


class StackedBatches:
    """The batches that several learners train on. `learners`: which of the given ones each row of the stack is."""

    def __init__(self, given: Sequence[TorchLearner], configs: Sequence[TrainConfig]) -> None:
        lengths = [learner.train_data.examples or 0 for learner in given]
        self.learners = sorted(range(len(given)), key=lambda one: -lengths[one])  # so that those with most are a slice
        sources = [cast("TensorSource", given[one].train_data) for one in self.learners]
        self._options, self._size = sources[0].options, configs[0].batch_size
        self._tensors = tuple(torch.cat(parts) for parts in zip(*(source.tensors for source in sources), strict=True))
        self._starts = np.cumsum([0, *(lengths[one] for one in self.learners)])[:-1]
        merge = self._options.merge_small
        places = {length: cuts(length, self._size, merge_small=merge) for length in set(lengths)}
        self._passes = [
            training_passes(places[lengths[one]], configs[one], generator_of(configs[one].seed))
            for one in self.learners
        ]
        self.steps = [steps_of(configs[0], len(places[lengths[one]])) for one in self.learners]
        self._total = sum(self.steps)
        self.is_ragged, self.is_padded = len(places) > 1, False
        """True if learners differ in their numbers of examples, and if their last batches may then be padded."""
        self._done, self.seen = 0, np.zeros(len(given), np.int64)
        """The number of examples that each row has trained on."""
        self.alone = np.zeros(len(given), np.int64)
        """The number of batches that each row has taken alone."""

    @property
    def has_classes(self) -> bool:
        """True if all targets are numbers of classes, and none has a special meaning."""
        target = self._tensors[-1]
        return target.dtype == torch.int64 and bool((target >= 0).all())

    def sample(self, count: int) -> tuple[Tensor, ...]:
        """Return about `count` examples of various learners, on the device."""
        step = max(1, len(self._tensors[0]) // count)
        examples: tuple[Tensor, ...] = moved(tuple(part[::step] for part in self._tensors), self._options.device)
        return examples

    def __iter__(self) -> Iterator[StackedBatch]:
        """Yield each learner's next batches, with those of others, until all configs are used up."""
        passes = self._next_passes(range(len(self._passes)))
        while passes:
            yield from self._pass(passes)
            passes = self._next_passes(row for row, _, _ in passes)

    def _next_passes(self, rows: Iterable[int]) -> list[tuple[int, Tensor, Places]]:
        return [(row, *following) for row in rows if (following := next(self._passes[row], None))]

    def _pass(self, passes: Sequence[tuple[int, Tensor, Places]]) -> Iterator[StackedBatch]:
        rows = np.array([row for row, _, _ in passes])
        lengths = np.array([len(order) for _, order, _ in passes])
        order = torch.cat([order for _, order, _ in passes]).numpy() + np.repeat(self._starts[rows], lengths)
        own = np.cumsum(lengths) - lengths  # where each row's order begins
        for having, begins, sizes in self._cut([places for _, _, places in passes]):
            chosen, starts = rows[having], own[having] + begins
            self.seen[chosen] += sizes
            if len(having) == 1:
                self.alone[chosen] += 1
                yield self._batch(int(chosen[0]), order[starts[0] : starts[0] + sizes[0]], sizes)
            else:
                within = np.minimum(np.arange(sizes.max()), sizes[:, None] - 1)
                yield self._batch(self._rows(chosen), order[starts[:, None] + within], sizes)

    def _cut(self, places: Sequence[Places]) -> Iterator[tuple[Indices, Indices, Indices]]:
        """Yield the passes whose batches are taken at once, the batches' first places, and their sizes."""
        full = self._size
        firsts = np.array([those[0][0] for those in places])
        lasts, stops = np.array([those[-1] for those in places]).T
        sizes = stops - lasts
        counts = np.array([len(those) for those in places]) - (sizes != full)  # only a last batch may not be full
        shared = int(np.sort(counts)[-STEP_MIN]) if len(counts) >= STEP_MIN else 0
        for number in range(shared):
            having = np.flatnonzero(counts > number)
            yield having, firsts[having] + number * full, np.full(len(having), full)
        for one in np.flatnonzero(counts > shared):
            for number in range(shared, counts[one]):
                yield np.array([one]), firsts[one] + np.array([number * full]), np.array([full])
        kinds = np.where(sizes == full, -1, similar(sizes) if self.is_padded else sizes)
        for kind in np.unique(kinds[kinds >= 0]):
            alike = np.flatnonzero(kinds == kind)
            for having in [alike] if len(alike) >= STEP_MIN else alike[:, None]:
                yield having, lasts[having], sizes[having]

    def _rows(self, rows: Indices) -> Rows:
        if rows[-1] - rows[0] + 1 == len(rows):
            return slice(int(rows[0]), int(rows[-1]) + 1)
        return torch.from_numpy(rows).to(self._options.device)

    def _batch(self, rows: Rows, chosen: Indices, sizes: Indices) -> StackedBatch:
        flat = torch.from_numpy(chosen.ravel()).to(self._tensors[0].device, non_blocking=True)
        tensors = tuple(part.index_select(0, flat) for part in self._tensors)
        if chosen.ndim > 1:
            tensors = tuple(part.reshape(*chosen.shape, *part.shape[1:]) for part in tensors)
        self._done += len(sizes)
        return StackedBatch(rows, moved(tensors, self._options.device), sizes, self._done / self._total)


def similar(sizes: npt.ArrayLike) -> Indices:
    """Return a number for each size, equal for 1 to 3, 4 to 15, 16 to 63 …: few kinds, and little padding in each."""
    kinds: Indices = np.log2(sizes).astype(np.int64) // 2
    return kinds
