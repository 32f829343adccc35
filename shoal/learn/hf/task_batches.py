"""The examples of a task in the order of `TorchLearner`, as a loader of batches takes them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from shoal.core.algorithm.learner import TrainConfig
from shoal.learn.data.batches import training_passes
from shoal.learn.data.passes import Places, cuts, steps_of


class TaskBatches:
    """The micro-batches of a task, as lists of indices: `parts` of them make one step of the optimizer.

    The examples of a step are those of `training_batches` for the same data and config, from a position too. A pass
    whose last step would have fewer examples than parts gives them to the step before.
    """

    def __init__(
        self, examples: int, config: TrainConfig, shuffle: torch.Generator, parts: int, *, merge_small: bool
    ) -> None:
        self.parts = min(parts, examples)
        self._places = _mended(cuts(examples, config.batch_size, merge_small=merge_small), self.parts)
        self._config, self._shuffle = config, shuffle
        self.steps = steps_of(config, len(self._places))

    def __len__(self) -> int:
        return self.steps * self.parts

    def __iter__(self) -> Iterator[list[int]]:
        for order, places in training_passes(self._places, self._config, self._shuffle):
            for start, stop in places:
                for part in order[start:stop].tensor_split(self.parts):
                    yield part.tolist()


def _mended(places: Places, parts: int) -> Places:
    """Return the places of steps that have an example for each part."""
    first, last = places[-1]
    if len(places) > 1 and last - first < parts:
        return [*places[:-2], (places[-2][0], last)]
    return places
