"""Evaluation of one model on the test data of several learners: one forward pass over the examples of many.

The loss and the metrics are then those of each learner's own outputs, so that they may be any functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.errors import LearnerFailed
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Metrics
from shoal.core.protocol.metrics import EVAL_WEIGHT
from shoal.learn.data.batches import TensorSource, moved, split
from shoal.learn.seeds import seeded
from shoal.learn.stacked.stacked_training import is_by_example, is_of_classes
from shoal.learn.training.measures import Evaluation, default_metrics
from shoal.learn.training.module_pool import recipe
from shoal.learn.training.torch_learner import TorchLearner
from shoal.learn.user_errors import user_code

SAMPLE = 8
"""Examples with which to find out whether a module treats each by itself."""

Outcome = Metrics | str
"""A learner's metrics, or why it must be evaluated alone."""


class StackedEvaluation:
    """The metrics of learners that can be trained at once, with a model; measured when the first of them is asked."""

    def __init__(self, learners: Sequence[TorchLearner], model: Tree) -> None:
        self._learners, self._model = learners, model
        self._found: dict[TorchLearner, Outcome] = {}

    def of(self, learner: TorchLearner) -> Outcome:
        """Return the metrics of one of the learners, which has test data, or why it must be evaluated alone."""
        if self._learners:
            self._found = evaluate_stacked([one for one in self._learners if one.test_data is not None], self._model)
            self._learners = ()
        return self._found[learner]


def evaluate_stacked(learners: Sequence[TorchLearner], model: Tree) -> dict[TorchLearner, Outcome]:
    """Return what `load(model)` and `evaluate()` give for learners that can be trained at once and have test data.

    The first learner's module does the work and holds `model` afterwards.
    """
    for learner in learners:
        learner.place()
    found: dict[TorchLearner, Outcome] = {one: reason for one in learners if (reason := _why_alone(one, learners[0]))}
    joined = [one for one in learners if one not in found]
    try:
        return found | (_joined(joined, model) if joined else {})
    except LearnerFailed as error:
        return found | dict.fromkeys(joined, f"they cannot be evaluated at once ({error.message})")


def _why_alone(learner: TorchLearner, first: TorchLearner) -> str:
    """Return why a learner's test data cannot join those of the first one; empty if they can."""
    if not isinstance(learner.test_data, TensorSource) or not isinstance(first.test_data, TensorSource):
        return "their test data are not tensors"
    if learner.test_data.form != first.test_data.form:
        return "their test data differ in shape, type or place"
    if learner.test_data.examples > learner.config.eval_batch_size:
        return "they have more test data than eval_batch_size"
    return ""


def _joined(learners: Sequence[TorchLearner], model: Tree) -> dict[TorchLearner, Outcome]:
    """Return the metrics of learners whose test data can be joined, or why they cannot be evaluated at once."""
    first = learners[0]
    first.load(model)
    found: dict[TorchLearner, Outcome] = {}
    with user_code("evaluating"), seeded(0, first.device), torch.no_grad():
        first.module.eval()
        is_checked = False
        for some in _batches(learners):
            inputs, target = split(_examples(some))
            if not is_checked and not is_by_example(first.module, tuple(part[:SAMPLE] for part in inputs)):
                return dict.fromkeys(learners, "outputs seem to depend on other examples of their batch")
            is_checked = True
            found |= _measured(some, first.module(*inputs), target)
    return found


def _batches(learners: Sequence[TorchLearner]) -> Iterator[list[TorchLearner]]:
    """Yield learners whose examples make a batch of an evaluation together."""
    some: list[TorchLearner] = []
    room = 0
    for learner in learners:
        examples = _test_source(learner).examples
        if examples > room and some:
            yield some
            some = []
        room = (room if some else learner.config.eval_batch_size) - examples
        some.append(learner)
    yield some


def _test_source(learner: TorchLearner) -> TensorSource:
    return cast("TensorSource", learner.test_data)


def _examples(learners: Sequence[TorchLearner]) -> tuple[Tensor, ...]:
    """Return all test data of some learners, on the device."""
    sources = [_test_source(one) for one in learners]
    tensors = tuple(torch.cat(parts) for parts in zip(*(source.tensors for source in sources), strict=True))
    examples: tuple[Tensor, ...] = moved(tensors, sources[0].options.device)
    return examples


def _measured(learners: Sequence[TorchLearner], output: Tensor, target: Tensor) -> dict[TorchLearner, Metrics]:
    """Return the metrics of some learners with the outputs for the examples of all of them."""
    stops = np.cumsum([_test_source(one).examples for one in learners])
    if is_of_classes(learners[0].loss) and _are_classes(output, target) and all(map(_has_usual_metrics, learners)):
        return dict(zip(learners, _class_metrics(stops, output, target), strict=True))
    found = {}
    for learner, (start, stop) in zip(learners, pairwise([0, *stops.tolist()]), strict=True):
        own, truth = output[start:stop], target[start:stop]
        evaluation = Evaluation(learner.loss, learner.metrics, output.device)
        evaluation.add(own, truth, learner.loss(own, truth), stop - start)
        found[learner] = evaluation.named()
    return found


def _are_classes(output: Tensor, target: Tensor) -> bool:
    """Return whether each target is the number of a class, and none has a special meaning."""
    plain = output.ndim == 2 and target.ndim == 1 and target.dtype == torch.int64
    return plain and bool((target >= 0).all())


def _has_usual_metrics(learner: TorchLearner) -> bool:
    usual = default_metrics(learner.loss)
    return learner.metrics.keys() == usual.keys() and all(
        recipe(measure) == recipe(usual[name]) for name, measure in learner.metrics.items()
    )


def _class_metrics(stops: npt.NDArray[np.int64], output: Tensor, target: Tensor) -> Iterator[Metrics]:
    """Yield loss and accuracy of each learner, whose examples end at `stops`."""
    starts, lengths = np.r_[0, stops[:-1]], np.diff(stops, prepend=0)
    losses = torch.nn.functional.cross_entropy(output, target, reduction="none")
    each = torch.stack([losses, output.argmax(1) == target]).cpu().double().numpy()
    means = np.add.reduceat(each, starts, axis=1) / lengths
    for examples, loss, accuracy in zip(lengths.tolist(), *means.tolist(), strict=True):
        yield {EVAL_WEIGHT: float(examples), "eval/loss": loss, "eval/accuracy": accuracy}
