"""The learner of the conformance jobs: arithmetic that gives the same bits in every language.

docs/reference/protocol.md, "Conformance", defines it; this is its reference, and `shoal join URL --learner
shoal.conformance.reference_learner:learner` is an edge client that passes.
"""

from __future__ import annotations

import numpy as np

from shoal.core.algorithm.learner import Correct, ExtraLoss, Progress, TrainConfig, Trained, no_progress
from shoal.core.errors import LearnerFailed
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Metrics

ELEMENTS = 8
"""Elements of `w` in an initial model."""
IMPOSSIBLE = "impossible"
"""A model with a tensor of this name cannot be trained."""


def learner() -> ConformanceLearner:
    """Return the learner, for `shoal join`."""
    return ConformanceLearner()


class ConformanceLearner:
    """The learner of the conformance jobs. `start`: the model that it begins with, in place of its own."""

    stages = 2
    layout: None = None
    """A declaration: this learner trains any model, so its node gets tasks of every layout."""

    def __init__(self, start: Tree | None = None) -> None:
        self._start = start
        self._model = Tree.of({})

    def init(self, seed: int) -> Tree:
        """Return w[i] = ((seed + i) mod 64) / 64 as float32, and seen = 0 as int64."""
        w = np.array([(seed + i) % 64 / 64 for i in range(ELEMENTS)], np.float32)
        self._model = self._start or Tree.of({"w": w, "seen": np.array(0, np.int64)})
        return self._model

    def enter_stage(self, stage: int) -> None:
        """Do nothing: this learner trains any model."""

    def grow(self, model: Tree, seed: int) -> Tree:
        """Double the numbers of `w`: w[2 i] = w[i] and w[2 i + 1] = w[i] / 2 + (seed mod 64) / 64 as float32."""
        w = model["w"]
        pairs = np.stack([w, w * np.float32(0.5) + np.float32(seed % 64 / 64)], axis=1)
        self._model = Tree.of({"w": pairs.reshape(-1), "seen": np.array(model["seen"])})
        return self._model

    def load(self, model: Tree) -> None:
        """Take any model."""
        self._model = model

    def model(self) -> Tree:
        """Return the weights."""
        return self._model

    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        """Compute x = x / 2 + (seed mod 1024) / 1024 in each float32 tensor and add one to `seen`, once per epoch."""
        if IMPOSSIBLE in self._model:
            raise LearnerFailed(f"the tensor {IMPOSSIBLE} cannot be trained")
        step = np.float32(config.seed % 1024 / 1024)
        arrays = {name: np.array(self._model.stored(name)) for name in self._model}
        for epoch in range(int(config.epochs)):
            for name, values in arrays.items():
                if values.dtype == np.float32:
                    arrays[name] = values * np.float32(0.5) + step
            arrays["seen"] = arrays["seen"] + 1
            progress((epoch + 1) / config.epochs)
        dtypes = {leaf.name: leaf.dtype for leaf in self._model.layout.leaves}
        layout = self._model.layout
        self._model = Tree.of(arrays, dtypes, layout.base_model, layout.statistics)
        return Trained(float(1 + config.seed % 7), {"train/loss": float(step)})

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        """Refuse: no conformance job asks for a gradient."""
        raise LearnerFailed("the conformance learner has no gradient")

    def evaluate(self) -> Metrics:
        """Return the sum of the magnitudes of `w`, added from the first to the last in float64, over four examples."""
        total = 0.0
        for value in self._model["w"].reshape(-1).tolist():
            total += abs(value)
        return {"eval/examples": 4.0, "eval/loss": total}
