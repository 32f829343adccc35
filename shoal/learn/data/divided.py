"""Data that give whole batches, of which each rank of a site takes its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from shoal.core.errors import LearnerFailed
from shoal.learn.data.batches import Batch, BatchOptions, Data, DatasetSource, IndexedSource, rebuilt, source_of
from shoal.learn.data.passes import BatchSource, Waiting
from shoal.learn.site.ranks import Ranks


def rows_source(data: Data, options: BatchOptions) -> BatchSource:
    """Return the source of this rank's rows, if the options name ranks. Raises as `source_of` does."""
    whole = source_of(data, options._replace(site=None))
    if options.site is None:
        return whole
    if not isinstance(whole, IndexedSource | DatasetSource):
        return DividedSource(whole, options.site)
    whole.options = options
    return whole


class DividedSource(BatchSource):
    """A source of whole batches, such as a `DataLoader`: all ranks load all of them."""

    def __init__(self, whole: BatchSource, ranks: Ranks) -> None:
        self._whole, self._ranks = whole, ranks

    @property
    def examples(self) -> int | None:
        return self._whole.examples

    def steps(self, batch_size: int) -> int | None:
        return self._whole.steps(batch_size)

    def epoch(self, batch_size: int, shuffle: torch.Generator | None) -> Iterator[Batch]:
        state = torch.get_rng_state()  # a loader without a generator of its own draws its order from this one
        self._ranks.copy_first([state])
        torch.set_rng_state(state)
        for batch in self._whole.epoch(batch_size, shuffle):
            yield self._own(batch)

    def sequence(self, batch_size: int, position: int, waiting: Waiting, seed: int = 0) -> Iterator[Batch]:
        for batch in self._whole.sequence(batch_size, position, waiting, seed):
            yield self._own(batch)

    def note_batch_size(self, wanted: int) -> None:
        self._whole.note_batch_size(wanted)

    def _own(self, batch: Batch) -> Batch:
        rows, own = self._ranks.rows_of(slice(0, batch.examples), batch.examples)
        return Batch(taken(batch.data, rows, batch.examples), batch.examples, own)


def taken(part: Any, rows: slice | Tensor, examples: int) -> Any:
    """Return these rows of all tensors of a batch. Raises `LearnerFailed` if it holds anything else."""
    if isinstance(part, Tensor) and part.ndim and len(part) == examples:
        return part[rows]
    if (made := rebuilt(part, lambda one: taken(one, rows, examples))) is not part:
        return made
    what = f"a tensor of shape {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
    raise LearnerFailed(
        f"a batch of {examples} examples holds {what}, which cannot be divided among the processes of this node",
        code="learner.data",
        hint="give tensors (x, y) or a Dataset, or batches of tensors whose first dimension counts the examples",
    )
