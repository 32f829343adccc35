"""The batches of a task, as a loader of Lightning's Trainer: the order of `TorchLearner`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from shoal.core.algorithm.learner import Progress, TrainConfig
from shoal.core.errors import LearnerFailed
from shoal.learn.data.passes import BatchSource, steps_of, training_batches


class TaskLoader:
    """One pass over the data at each iteration, or the batches of the task from a position of a sequence.

    passes          the epochs of the Trainer
    batches_wanted  the batches after which the task is done; None: all of these epochs
    """

    def __init__(self, source: BatchSource, config: TrainConfig, shuffle: torch.Generator, progress: Progress) -> None:
        self._source, self._config, self._shuffle, self._progress = source, config, shuffle, progress
        self._per_pass = source.steps(config.batch_size)
        self.in_sequence = config.batch_index >= 0
        self.sizes: deque[int] = deque()
        """The numbers of examples of the batches that are not yet trained on, in their order."""
        self.batches_wanted = None if self._per_pass is None and not config.steps else self._wanted()
        if self.in_sequence:
            self.passes = 1
        elif self.batches_wanted is None:
            self.passes = _whole(config.epochs)
        else:
            self.passes = math.ceil(self.batches_wanted / self._per_pass) if self._per_pass else -1

    def _wanted(self) -> int:
        return steps_of(self._config, self._per_pass or 0)

    def __len__(self) -> int:
        """Return the batches of a pass. Raises `TypeError` for data without a length, which Lightning expects."""
        if self.in_sequence:
            return self._wanted()
        if self._per_pass is None:
            raise TypeError("the data have no length")
        return min(self._per_pass, self._wanted())

    def __iter__(self) -> Iterator[Any]:
        self.sizes.clear()
        if self.in_sequence:
            for batch, _ in training_batches(self._source, self._config, self._shuffle, self._progress):
                yield self._counted(batch)
            return
        for batch in self._source.epoch(self._config.batch_size, self._shuffle):
            yield self._counted(batch)

    def _counted(self, batch: Any) -> Any:
        self.sizes.append(batch.examples)
        return batch.data


class StoredBatches:
    """One pass over test data in their order, and the number of examples that the last one had."""

    def __init__(self, source: BatchSource, batch_size: int) -> None:
        self._source, self._batch_size, self.examples = source, batch_size, 0

    def __iter__(self) -> Iterator[Any]:
        self.examples = 0
        for batch in self._source.epoch(self._batch_size, None):
            self.examples += batch.examples
            yield batch.data


def _whole(epochs: float) -> int:
    if epochs != int(epochs):
        hint = "set steps in the job, or give the dataset a __len__"
        raise LearnerFailed(f"{epochs} epochs of data without a length", code="learner.data", hint=hint)
    return int(epochs)
