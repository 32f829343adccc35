"""A learner that draws a line between two clouds of points; and one that does, and shows minus three times that."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.algorithm.learner import Trained
from shoal.core.model.tree import Tree
from shoal.sim.hosts.toy_models import ToyLearner, toy_tree

Points = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
STEPS, RATE = 10, 0.5


def cloud(seed: int, count: int, share: float) -> Points:
    """`float64[count, 3]` (the last is 1), and `float64[count]` of 0 or 1; `share` of the points are of the second."""
    rng = np.random.default_rng(seed)
    y = (rng.random(count) < share).astype(float)
    x = rng.normal(size=(count, 2)) + np.where(y[:, None] > 0, 1.2, -1.2) * np.array([1.0, 0.5])
    return np.hstack([x, np.ones((count, 1))]), y


def accuracy(w: npt.NDArray[np.float64]) -> float:
    """Data at points that no peer has."""
    x, y = cloud(999, 4000, 0.5)
    return float(np.mean((x @ w > 0) == (y > 0)))


class Line(ToyLearner):
    """Logistic regression on points of its own, more of one class than of the other."""

    def __init__(self, number: int, pause_s: float = 0.0, *, poison: bool = False) -> None:
        super().__init__(number)
        self._points = cloud(number, 200, 0.3 if number % 2 else 0.7)
        self._pause_s, self._poison = pause_s, poison
        self._own: npt.NDArray[np.float64] | None = None

    def train(self, config: Any, *, progress: Any = lambda fraction: None, **more: Any) -> Trained:
        time.sleep(self._pause_s)
        start = self._own if self._own is not None else self._model["w"]
        w, (x, y) = np.array(start, float), self._points
        for _ in range(STEPS):
            w -= RATE * x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y)
        self._own = w if self._poison else None
        shown = -3.0 * w if self._poison else w
        self._model = toy_tree((float(shown[0]), float(shown[1]), float(shown[2])), int(self._model["seen"]) + 1)
        return Trained(10.0, {"train/loss": 0.0})

    def evaluate(self) -> dict[str, float]:
        x, y = self._points
        margin = (x @ np.array(self._model["w"], float)) * (2 * y - 1)
        return {"eval/examples": 200.0, "eval/loss": float(np.mean(np.logaddexp(0, -margin)))}

    @property
    def examples(self) -> int:
        return 10

    def init(self, seed: int) -> Tree:
        return toy_tree((0.1, 0.0, 0.0), 0)


def learner(number: int = 1, pause_s: float = 0.0, poison: bool = False) -> Line:
    return Line(number, pause_s, poison=poison)
