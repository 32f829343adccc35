"""A learner whose training is the loop of the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.core.algorithm.capability import CODE
from shoal.core.algorithm.learner import Correct, ExtraLoss, Progress, TrainConfig, Trained, no_progress
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import Layout, Tree, same_layout
from shoal.core.protocol.message import Metrics
from shoal.loop.rendezvous import LoopCall, Rendezvous


@dataclass(frozen=True)
class LoopStart:
    """The state at the begin of a loop. `model`: the weights of a job without any. `kept`: tensors that stay on a node.
    `examples`: their number, where the user knows it. `evaluates`: the user's thread measures models."""

    model: Tree
    kept: Any = None
    examples: int | None = None
    device: str = ""
    evaluates: bool = False


class LoopLearner:
    """The model and data of one node, trained by the thread of the user's loop (`shoal.core.algorithm.learner`)."""

    gives_gradients = False
    """A loop reports a trained model, no gradient (see `shoal.core.algorithm.capability`)."""

    def __init__(self, calls: Rendezvous, start: LoopStart, node: str = "", index: int = 0) -> None:
        self._calls, self._start, self._node, self._index = calls, start, node, index
        self._model, self._kept = start.model, start.kept
        self.examples, self.device = start.examples, start.device

    @property
    def layout(self) -> Layout:
        """Return names, types and shapes of the weights."""
        return self._start.model.layout

    def init(self, seed: int) -> Tree:
        """Return the weights that the user's model had when the loop began."""
        self._model = self._start.model
        return self._model

    def load(self, model: Tree) -> None:
        same_layout(self.layout, model.layout)
        self._model = model

    def model(self) -> Tree:
        return self._model

    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        """Wait until the loop has reported."""
        if correct is not None or extra_loss is not None:
            text = "a training loop of the user's own does not pass its gradients or losses through the algorithm"
            raise InvalidJob(text, code=CODE, hint="use TorchLearner, or another algorithm, for example fedavg")
        if not config.lr:  # nothing is learned, only weighed
            hint = "write node.tasks(model, examples=len(data))"
            raise LearnerFailed("the training loop gives no number of examples", hint=hint)
        trained: Trained
        self._model, trained, self._kept = self._calls.submit(self._call(config), progress)
        return trained

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        """Raise `InvalidJob`: a loop gives none."""
        raise InvalidJob(
            "a training loop of the user's own gives no gradient, which the job's algorithm or selection asks for",
            code=CODE,
            hint="use TorchLearner, or an algorithm and a selection without gradients, for example fedavg and uniform",
        )

    def evaluate(self) -> Metrics:
        found: Metrics = self._calls.submit(self._call(None), no_progress) if self._start.evaluates else {}
        return found

    def _call(self, config: TrainConfig | None) -> LoopCall:
        return LoopCall(self._node, self._index, self._model, config, self._kept)
