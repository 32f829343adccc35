"""A learner's held-out examples, answered by a cascade: `shoal infer`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from shoal.core.algorithm.learner import Learner, Progress
from shoal.core.errors import InvalidJob
from shoal.core.exits.cascade_level import CascadeAnswer
from shoal.core.exits.cascade_report import LevelReport, report_levels
from shoal.core.exits.threshold_choice import choose_by_accuracy
from shoal.core.exits.thresholds import ExitRecord
from shoal.learn.data.batches import split
from shoal.learn.exits.level_answers import answer, hops_of, record_exits
from shoal.serving.served_level import exit_network

BATCH = 128
"""Examples that are asked at a time."""

Ask = Callable[[Sequence[Tensor]], Awaitable[CascadeAnswer]]


class Inference(NamedTuple):
    """The result on all examples."""

    levels: list[LevelReport]
    examples: int
    accuracy: float

    @property
    def bytes_per_answer(self) -> float:
        """The mean of the bytes on all links."""
        return sum(one.sent_bytes for one in self.levels) / self.examples


def held_out(learner: Any) -> Iterator[tuple[Sequence[Tensor], Tensor, float]]:
    """Yield inputs and classes of held-out examples in batches, and the fraction done. Raises `InvalidJob` without."""
    learner.place()
    source = learner.test_data
    if source is None:
        raise InvalidJob("the learner has no held-out examples", code="learner.data", hint="give it test data")
    done = 0
    for batch in source.epoch(BATCH, None):
        inputs, target = split(batch.data)
        done += batch.examples
        yield inputs, target, done / source.examples if source.examples else 0.0


def chosen_thresholds(learner: Learner) -> tuple[float, ...]:
    """Return thresholds that lose at most half a point of accuracy on the held-out examples."""
    network = exit_network(learner)
    records = [record_exits(network, inputs, target) for inputs, target, _ in held_out(learner)]
    entropies, correct = (
        np.concatenate(parts, 1) for parts in zip(*((one.entropies, one.correct) for one in records), strict=True)
    )
    return choose_by_accuracy(ExitRecord(entropies, correct))


def here(learner: Learner, thresholds: Sequence[float]) -> Ask:
    """Return a function that computes all levels in this process."""
    network = exit_network(learner)

    async def ask(inputs: Sequence[Tensor]) -> CascadeAnswer:
        found = answer(network, inputs, thresholds)
        return CascadeAnswer(found.classes, found.exits, np.zeros(len(found.exits), np.bool_))

    return ask


async def infer(learner: Learner, ask: Ask, progress: Progress) -> Inference:
    """Ask for the classes of all held-out examples, and compare."""
    network, found, correct, hops = exit_network(learner), [], [], None
    for inputs, target, done in held_out(learner):
        hops = hops or hops_of(network, inputs)
        found.append(await ask(inputs))
        correct.append(found[-1].classes == target.cpu().numpy())
        progress(done)
    whole, right = CascadeAnswer(*map(np.concatenate, zip(*found, strict=True))), np.concatenate(correct)
    reports = report_levels(network.levels, whole, right, hops or [])
    return Inference(reports, len(right), float(right.mean()))
