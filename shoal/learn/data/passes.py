"""Passes over data: where batches begin and end, and which of them a task trains on. Needs numpy, not torch.

Indexable data also make endless *sequences* of mini-batches: pass after pass, each in an order that follows from the
sequence's seed and the number of the pass. Batch number t of a sequence is then the same whenever it is asked for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any, TypeVar

import numpy as np

from shoal.core.algorithm.learner import Progress, TrainConfig, no_progress
from shoal.core.errors import LearnerFailed

Waiting = Callable[[], None]
"""Called often while a batch is waited for; may raise `Cancelled`."""

Places = list[tuple[int, int]]
"""(start, stop) of each batch of a pass, in the order of the pass."""

PASSES_KEPT = 32
"""Orders of passes that are kept: one for each node that is simulated, or a few."""

Order = TypeVar("Order")
"""An order of examples: a tensor or an array of their indices."""


class BatchSource(ABC):
    """Data that support repeated iteration."""

    @property
    @abstractmethod
    def examples(self) -> int | None:
        """The number of examples; None if only iteration tells."""

    @abstractmethod
    def steps(self, batch_size: int) -> int | None:
        """Return the batches per pass; None if only iteration tells."""

    @abstractmethod
    def epoch(self, batch_size: int, shuffle: Any) -> Iterator[Any]:
        """Yield one pass, in an order by the generator `shuffle` (None: stored order). Batch size 0: all at once."""

    def sequence(self, batch_size: int, position: int, waiting: Waiting, seed: int = 0) -> Iterator[Any]:
        """Yield an endless sequence of mini-batches from number `position` on. Raises `LearnerFailed` if there is
        none.

        A pure function of data, batch size, position and the sequence's seed.
        """
        raise LearnerFailed(
            "the order names a position in a sequence of mini-batches, and these data can only be walked through",
            code="learner.data",
            hint="give tensors (x, y), a Dataset with __getitem__, or a shoal.learn.data.stream.Stream",
        )

    def note_batch_size(self, wanted: int) -> None:
        """Log once that the data have batches of their own size, if the job sets another."""
        return

    def as_of(self, position: int) -> BatchSource:
        """Return the data as they are for mini-batch `position` of the sequence."""
        return self


def seed_of(*numbers: int) -> int:
    """Return one seed from several nonnegative numbers; it depends on their order."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def cuts(examples: int, batch_size: int, *, merge_small: bool = False) -> Places:
    """Yield (start, stop) of batches. The last may be smaller, or up to half larger; batch size 0 means one batch."""
    size = batch_size or examples
    places = [(start, min(start + size, examples)) for start in range(0, examples, max(1, size))]
    if merge_small and len(places) > 1 and 0 < 2 * (examples % size) < size:
        places[-2:] = [(places[-2][0], examples)]
    return places


def passes_from(
    places: Places, position: int, seeds: tuple[int, ...], pass_order: Callable[[int, int], Order]
) -> Iterator[tuple[Order, Places]]:
    """Yield passes without end: the order of each, and the places in it from batch number `position` on."""
    first, begun = divmod(position, len(places))
    for number in count(first):
        yield pass_order(places[-1][1], seed_of(*seeds, number)), places[begun:]
        begun = 0


def no_call() -> None:
    """Do nothing at the end of a pass."""


def training_batches(
    source: BatchSource,
    config: TrainConfig,
    shuffle: Any,
    progress: Progress = no_progress,
    end_pass: Callable[[], None] = no_call,
) -> Iterator[tuple[Any, float]]:
    """Yield (batch, fraction of the training done after it) until the training ends: from a position of the data's
    sequence, or in passes with new shuffles.

    Part of a pass is rounded up to whole batches. `progress` is called while a batch is awaited, `end_pass` after the
    last batch of a pass that others follow. Raises `LearnerFailed` for a part of data without a length, and for a
    position in data without a sequence.
    """
    per_epoch, in_sequence = source.steps(config.batch_size), config.batch_index >= 0
    if not config.steps and per_epoch is None:
        if in_sequence:
            raise LearnerFailed(
                "the data have no passes that epochs could count", code="learner.data", hint="set steps in the job"
            )
        yield from _whole_passes(source, config, shuffle, end_pass)
        return
    wanted = steps_of(config, per_epoch or 0)
    done = 0

    def waiting() -> None:
        progress(done / wanted)

    batches = (
        source.sequence(config.batch_size, config.batch_index, waiting, config.sequence_seed)
        if in_sequence
        else _passes(source, config.batch_size, shuffle, end_pass)
    )
    for batch in islice(batches, wanted):
        done += 1
        yield batch, done / wanted
        if in_sequence and per_epoch and (config.batch_index + done) % per_epoch == 0:
            end_pass()


def steps_of(config: TrainConfig, per_epoch: int) -> int:
    """Return the batches of one training; `per_epoch` are the batches of a pass."""
    return config.steps or math.ceil(config.epochs * per_epoch - 1e-9)


def _passes(source: BatchSource, batch_size: int, shuffle: Any, end_pass: Callable[[], None]) -> Iterator[Any]:
    """Yield passes without end."""
    while True:
        empty = True
        for batch in source.epoch(batch_size, shuffle):
            empty = False
            yield batch
        if empty:
            raise LearnerFailed("the training data gave no batch", code="learner.data")
        end_pass()


def _whole_passes(
    source: BatchSource, config: TrainConfig, shuffle: Any, end_pass: Callable[[], None]
) -> Iterator[tuple[Any, float]]:
    if config.epochs != int(config.epochs):
        raise LearnerFailed(
            f"{config.epochs} epochs of data without a length",
            code="learner.data",
            hint="set steps in the job, or give the dataset a __len__",
        )
    for epoch in range(int(config.epochs)):
        for batch in source.epoch(config.batch_size, shuffle):
            yield batch, epoch / config.epochs
        end_pass()
