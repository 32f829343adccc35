"""Learners whose loss is a quadratic, so that every method has an oracle of a few lines of numpy.

f_k(w) = 1/2 (w - a_k)' H_k (w - a_k), and the common loss is their mean, weighted by examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.core.algorithm.learner import Correct, ExtraLoss, Progress, TrainConfig, Trained, no_progress
from shoal.core.model.tree import Tree, add
from shoal.core.protocol.message import Metrics

Floats = npt.NDArray[np.float64]
DIMENSIONS = 4


def tree(values: Floats | Sequence[float]) -> Tree:
    return Tree.of({"w": np.asarray(values, np.float32)})


def weights(model: Tree) -> Floats:
    return np.asarray(model["w"], np.float64)


class Quadratic:
    """One node. It writes into `log` the name of each node that trains, and every position that it is told."""

    applies_corrections = True

    def __init__(self, name: str, log: list[str], seed: int, examples: float = 1.0, exact: bool = False) -> None:
        rng = np.random.default_rng(seed)
        root = rng.standard_normal((DIMENSIONS, DIMENSIONS))
        self.name, self.log, self.examples, self.exact = name, log, examples, exact
        self.h: Floats = root @ root.T / DIMENSIONS + 0.1 * np.eye(DIMENSIONS)
        self.a: Floats = 3 * rng.standard_normal(DIMENSIONS)
        self.weights = self.init(0)

    def init(self, seed: int) -> Tree:
        return tree(np.zeros(DIMENSIONS))

    def load(self, model: Tree) -> None:
        self.weights = model

    def model(self) -> Tree:
        return self.weights

    def evaluate(self) -> Metrics:
        return {}

    def slope(self, w: Floats) -> Floats:
        return self.h @ (w - self.a)

    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        """`epochs` steps down the corrected gradient; exact: to its zero, because it is affine in the weights."""
        self.log.append(self.name)
        if self.exact:
            assert correct is not None
            zero = weights(correct(tree(np.zeros(DIMENSIONS)), tree(np.zeros(DIMENSIONS))))
            one = weights(correct(tree(np.ones(DIMENSIONS)), tree(np.zeros(DIMENSIONS))))
            self.weights = tree(np.linalg.solve(self.h + np.diag(one - zero), self.h @ self.a - zero))
            return Trained(self.examples)
        for _ in range(int(config.epochs)):
            gradient = tree(self.slope(weights(self.weights)))
            self.weights = add(self.weights, correct(self.weights, gradient) if correct else gradient, -config.lr)
        return Trained(self.examples)

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        self.log.append(self.name)
        return Trained(self.examples), tree(self.slope(weights(self.weights)))


def fleet(count: int, examples: Sequence[float] = (), exact: bool = False) -> tuple[list[Quadratic], list[str]]:
    """Nodes node-0, node-1, … and the log of who trained."""
    log: list[str] = []
    sizes = examples or (1.0,) * count
    return [Quadratic(f"node-{k}", log, k, sizes[k], exact) for k in range(count)], log


def optimum(nodes: Sequence[Quadratic], decay: float = 0.0) -> Floats:
    """Where the weighted mean of their losses, and decay/2 |w|^2, is least."""
    total = sum(node.examples for node in nodes)
    h = sum(node.examples / total * node.h for node in nodes) + decay * np.eye(DIMENSIONS)
    return np.asarray(np.linalg.solve(h, sum(node.examples / total * node.h @ node.a for node in nodes)))
