"""A learner that does nothing, as fast as possible: what is left of a round is the framework's own."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from shoal.core.algorithm.learner import Correct, ExtraLoss, Progress, TrainConfig, Trained, no_progress
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Metrics


class NoOp:
    """A model of `parameters` float32 zeros in `layers` layers. "Training" adds one small number, which differs from
    task to task: equal updates would have equal names, and be stored once. `starts`: a file that gets the time of each
    start of training."""

    device = "none"

    def __init__(self, parameters: int, metrics: bool, layers: int = 1, starts: Path | None = None) -> None:
        self._metrics, self._starts = metrics, starts
        self._model = Tree.of({f"w{layer}": np.zeros(parameters // layers, np.float32) for layer in range(layers)})

    def init(self, seed: int) -> Tree:
        return self._model

    def load(self, model: Tree) -> None:
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
        if self._starts is not None:
            with self._starts.open("a") as file:
                file.write(f"{time.monotonic()}\n")
        step = np.float32(1e-9 * (config.seed % 1_000_003 + 1))
        self._model = Tree.of({name: self._model[name] + step for name in self._model})
        return Trained(1.0, {"train/loss": float(step)} if self._metrics else {})

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        return Trained(1.0), self._model

    def evaluate(self) -> Metrics:
        return {"eval/examples": 100.0, "eval/loss": 1.0, "eval/accuracy": 0.5} if self._metrics else {}


def learner(parameters: int = 10_000, metrics: bool = True, layers: int = 1, starts: str = "") -> NoOp:
    """Return the learner of the edge client: `--option parameters=…`, `--option metrics=false`."""
    return NoOp(parameters, metrics, layers, Path(starts) if starts else None)
