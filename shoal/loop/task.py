"""A task in the user's training loop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.core.algorithm.learner import TrainConfig, Trained
from shoal.core.errors import Cancelled, InvalidJob, LearnerFailed
from shoal.core.protocol.message import Metrics
from shoal.loop.loop_model import LoopModel
from shoal.loop.rendezvous import LoopCall


class LoopTask:
    """Training that a job asks for. The model has its weights already.

    node, index       the node's name, and its number in a simulation: which data to train on
    batch_size, lr    the job's settings; `config` has all of them
    seed              the default generators of torch, numpy and random are seeded by it
    steps             mini-batches to train on, for algorithms that count them; 0: see `epochs`
    """

    def __init__(self, call: LoopCall, model: LoopModel) -> None:
        assert call.config is not None
        self.config: TrainConfig = call.config
        self.node, self.index = call.node, call.index
        self.batch_size, self.lr, self.seed = self.config.batch_size, self.config.lr, self.config.seed
        self.steps = self.config.steps
        self._call, self._model, self._is_reported = call, model, False

    def __repr__(self) -> str:
        amount = f"steps={self.steps}" if self.steps else f"epochs={self.epochs}"
        return f"LoopTask({self.node or 'node'}, {amount}, batch_size={self.batch_size}, lr={self.lr:g})"

    @property
    def epochs(self) -> Any:
        """The passes over the data: an integer, unless the job asks for a part of one.

        Raises `InvalidJob` if the job counts mini-batches.
        """
        if self.steps:
            raise InvalidJob(
                f"the job counts mini-batches, not epochs: this task is to train on {self.steps} of them",
                code="learner.steps",
                hint="train on the batches of task.batches(data), or on task.steps batches of task.batch_size",
            )
        epochs = self.config.epochs
        return int(epochs) if epochs == int(epochs) else epochs

    @property
    def cancelled(self) -> bool:
        """Return whether the result is not wanted any more: go on to the next task."""
        return self._call.is_cancelled

    def progress(self, fraction: float) -> bool:
        """Say how much is done, from 0 to 1; return False if the task was cancelled."""
        self._call.fraction = float(fraction)
        return not self.cancelled

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state of the model with the task's weights, for `Module.load_state_dict`."""
        return self._model.state_dict(self._call.model)

    def arrays(self) -> dict[str, Any]:
        """Return copies of the task's weights as numpy arrays by name."""
        from shoal.loop.array_model import arrays_of

        return arrays_of(self._call.model)

    def batches(self, data: Any) -> Iterator[Any]:
        """Yield the batches that a `TorchLearner` would train on, as many as the job asks for; reports progress.

        `data` as for `TorchLearner`. Ends early if the task is cancelled.
        """
        try:
            for batch, fraction in self._model.batches(data, self.config, self._report_progress):
                yield batch
                self._report_progress(fraction)
        except Cancelled:
            return

    def _report_progress(self, fraction: float) -> None:
        if not self.progress(fraction):
            raise Cancelled("the task was withdrawn")

    def report(self, model: Any = None, *, examples: float, metrics: Mapping[str, Any] | None = None) -> None:
        """Report the trained weights, once for each task. The report of a cancelled task is ignored.

        `model`: the trained module, its `state_dict()`, or arrays by name; None: the loop's own module. `examples`: the
        node's weight in the average: the number of its examples, or, for a task that counts `steps`, of those trained
        on. `metrics`: numbers by name. Raises `LearnerFailed`, `InvalidPayload` for a model that is not the job's.
        """
        if self._is_reported:
            raise LearnerFailed("task.report was called twice for one task", hint="call it once, after the training")
        if self.cancelled:
            return
        if not 0.0 <= (weight := float(examples)) < math.inf:
            raise LearnerFailed(f"examples is {examples}", hint="give the number of examples trained on")
        trained = Trained(weight, _named("train", metrics or {}))
        self._call.answer((self._model.pack(model), trained, self._model.local()))
        self._is_reported = True


def _named(kind: str, metrics: Mapping[str, Any]) -> Metrics:
    """Return numbers under names such as "train/loss". Raises `LearnerFailed` for other values."""
    found = {}
    for name, value in metrics.items():
        try:
            found[name if "/" in name else f"{kind}/{name}"] = float(value)
        except (TypeError, ValueError):
            hint = "give numbers by name, for example {'loss': 0.5}"
            raise LearnerFailed(f"the metric {name} is {type(value).__name__}, not a number", hint=hint) from None
    return found


def measured(call: LoopCall, model: LoopModel, evaluate: Any) -> Metrics:
    """Return what the user's function measures of a call's model, under names such as "eval/accuracy"."""
    with model.evaluating(call.model) as given:
        return _named("eval", evaluate(given))
