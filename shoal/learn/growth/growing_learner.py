"""A learner of a growing network: one learner for each stage of the job.

    GrowingLearner(lambda stage: TorchLearner(network(stage), pictures(stage)), stages=3)

Each stage has a module and data of its own, for example larger pictures.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from itertools import pairwise

from shoal.core.algorithm.learner import Correct, ExtraLoss, Progress, TrainConfig, Trained, no_progress
from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.model.tree import Array, Layout, Tree
from shoal.core.protocol.message import Metrics
from shoal.learn.growth.net2net import grow
from shoal.learn.training.torch_learner import Precision, TorchLearner


class GrowingLearner:
    """A `Learner` for jobs with stages. `make` returns the learner of a stage: 0, 1, … up to `stages - 1`.

    All of them are made at once. Raises `InvalidJob` if there are not at least two, or a network cannot grow into the
    next one (see `shoal.learn.growth.grow`).
    """

    applies_corrections = True
    """`train` passes every gradient through `correct` (see `shoal.core.algorithm.capability`)."""
    layout: Layout | None = None
    """None: the model has another layout in each stage, so a node tells none when it joins."""

    def __init__(self, make: Callable[[int], TorchLearner], stages: int) -> None:
        if stages < 2:
            raise InvalidJob(f"stages is {stages}", code="learner.stages", hint="2 or more; else use one TorchLearner")
        self._learners = [make(stage) for stage in range(stages)]
        self.stages, self._stage = stages, 0
        for small, large in pairwise(self._learners):
            grow(small.module, copy.deepcopy(large.module))

    def enter_stage(self, stage: int) -> None:
        """Use the learner of that stage from now on."""
        self._stage = stage

    def stage_of(self, layout: Layout) -> int:
        """Return the last stage whose network has this layout. Raises `InvalidPayload` if none has."""
        found = [stage for stage, one in enumerate(self._learners) if one.layout == layout]
        if not found:
            text = "the model does not fit the network of any stage"
            raise InvalidPayload(text, code="payload.layout", hint="give the learner that the job was trained with")
        return found[-1]

    def grow(self, model: Tree, seed: int) -> Tree:
        """Enter the next stage and return weights with which its network computes what `model` did."""
        small, large = self._learners[self._stage : self._stage + 2]
        small.load(model)
        large.init(seed)
        grow(small.module, large.module, seed)
        self._stage += 1
        return large.model()

    def learner_of(self, stage: int) -> TorchLearner:
        """Return the learner of that stage."""
        return self._learners[stage]

    @property
    def learner(self) -> TorchLearner:
        """The learner of the present stage."""
        return self._learners[self._stage]

    @property
    def examples(self) -> int | None:
        return self.learner.examples

    @property
    def other_optimizer(self) -> str:
        """As in `TorchLearner`."""
        return self.learner.other_optimizer

    @property
    def device(self) -> object:
        """The device of the module."""
        return self.learner.device

    def use(self, *, device: str | None = None, precision: Precision | None = None) -> None:
        """Set device and precision of all stages."""
        for one in self._learners:
            one.use(device=device, precision=precision)

    def init(self, seed: int) -> Tree:
        return self.learner.init(seed)

    def load(self, model: Tree) -> None:
        self.learner.load(model)

    def model(self) -> Tree:
        return self.learner.model()

    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        return self.learner.train(config, correct=correct, extra_loss=extra_loss, progress=progress)

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        return self.learner.gradient(config, progress=progress)

    def teach(self, teacher: Tree, weight: float) -> ExtraLoss:
        return self.learner.teach(teacher, weight)

    def predict(self, inputs: Array | Mapping[str, Array]) -> Array | dict[str, Array]:
        """Return the outputs of the present stage's module, as `TorchLearner.predict` does."""
        return self.learner.predict(inputs)

    def evaluate(self) -> Metrics:
        return self.learner.evaluate()
