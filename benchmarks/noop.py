"""A learner that does nothing, as fast as possible: what is left of a round is the framework's own."""

from __future__ import annotations

import numpy as np

from shoal.core.learner import Budget, Correct, ExtraLoss, Tick, Trained, no_tick
from shoal.core.message import Metrics
from shoal.core.tree import Tree


class NoOp:
    """A model of `parameters` float32 zeros. "Training" adds one small number, which differs from order to order: equal
    updates would have equal names, and be stored once."""

    device = "none"

    def __init__(self, parameters: int, metrics: bool) -> None:
        self._parameters, self._metrics = parameters, metrics
        self._model = self._step = Tree.of({"w": np.zeros(parameters, np.float32)})

    def init(self, seed: int) -> Tree:
        return self._model

    def load(self, model: Tree) -> None:
        self._model = model

    def model(self) -> Tree:
        return self._model

    def train(
        self,
        budget: Budget,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        tick: Tick = no_tick,
    ) -> Trained:
        step = np.float32(1e-9 * (budget.seed % 1_000_003 + 1))
        self._model = Tree.of({name: self._model[name] + step for name in self._model})
        return Trained(1.0, {"train/loss": float(step)} if self._metrics else {})

    def gradient(self, budget: Budget, *, tick: Tick = no_tick) -> tuple[Trained, Tree]:
        return Trained(1.0), self._model

    def evaluate(self) -> Metrics:
        return {"eval/examples": 100.0, "eval/loss": 1.0, "eval/accuracy": 0.5} if self._metrics else {}


def learner(parameters: int = 10_000, metrics: bool = True) -> NoOp:
    """Made by the edge client: `--option parameters=…`, `--option metrics=false`."""
    return NoOp(parameters, metrics)
