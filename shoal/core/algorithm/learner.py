"""The user's model and data, as the rest sees them. `shoal.learn.TorchLearner` is one; anything with these methods is.

A learner may keep what it likes between calls except randomness: each call gets its seed in the budget, so that the
same order gives the same result on any day, before or after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Metrics

Correct = Callable[[Tree, Tree], Tree]
"""`(weights, gradient) -> gradient`: applied at every local step (FedProx, SCAFFOLD, ADMM)."""

ExtraLoss = Callable[[Any, Any], Any]
"""`(batch, output) -> loss` added to the user's loss at every local step (distillation)."""

Tick = Callable[[float], None]
"""Called often with the fraction done, 0 to 1. Raises `Cancelled` when the result is no longer wanted."""


def no_tick(fraction: float) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class TrainConfig:
    """Amount of training. `steps` > 0 counts mini-batches and overrules `epochs`; `batch_size` 0: all at once."""

    epochs: float = 1.0
    steps: int = 0
    batch_size: int = 32
    lr: float = 0.1
    seed: int = 0
    position: int = -1
    """Index, in the node's own endless sequence of mini-batches, of the first one to train on; -1: no sequence, a fresh
    shuffle by `seed`. With a position, `Trained.weight` is the number of examples trained on in this call."""
    sequence: int = 0
    """Seed of the order of examples in the sequence. It stays as the position moves on."""


@dataclass(frozen=True)
class Trained:
    """`weight`: how many examples the result speaks for. `metrics`: "train/loss" and what else the learner measures."""

    weight: float
    metrics: Metrics = field(default_factory=dict)


@runtime_checkable
class CountsExamples(Protocol):
    """A learner that knows how many examples it trains on. Optional: only training for so many passes needs it."""

    @property
    def examples(self) -> int | None:
        """The number of examples; None if only a pass over the data can tell."""
        ...


@runtime_checkable
class Teachable(Protocol):
    """A learner that another model can teach. Optional: only distillation needs it."""

    def teach(self, teacher: Tree, weight: float) -> ExtraLoss:
        """Return `weight` times the cross entropy of the output with the teacher's, which stays fixed."""
        ...


@runtime_checkable
class GrowsTrees(Protocol):
    """A learner whose model is an ensemble of decision trees (`shoal.core.boosting`). Algorithms that average weights
    refuse it, and those of boosted trees refuse others."""

    def sketch(self) -> tuple[Trained, Tree]:
        """Return the quantile sketch of the private data."""
        ...

    def load(self, model: Tree) -> None:
        """Take this ensemble."""
        ...

    def histogram(self, *, tick: Tick = no_tick) -> tuple[Trained, Tree]:
        """Return the sums of gradients and Hessians that the loaded ensemble needs next, and "train/loss"."""
        ...


class Learner(Protocol):
    """Weights, and the private data that they are trained on.

    A learner whose `train` passes every gradient through `correct` declares `applies_corrections = True`; fedprox,
    scaffold and admm refuse others (`shoal.core.algorithm.capability`).
    """

    def init(self, seed: int) -> Tree:
        """Make and load fresh weights, the same for the same seed on every node, and return them."""
        ...

    def load(self, model: Tree) -> None:
        """Take these weights. Raises `InvalidPayload` when they do not fit the model."""
        ...

    def model(self) -> Tree:
        """Return a copy of the present weights."""
        ...

    def train(
        self,
        budget: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        tick: Tick = no_tick,
    ) -> Trained:
        """Train on the private data from the present weights."""
        ...

    def gradient(self, budget: TrainConfig, *, tick: Tick = no_tick) -> tuple[Trained, Tree]:
        """Return the mean gradient over all private data (or `steps` batches) at the present weights, which do not
        move."""
        ...

    def evaluate(self) -> Metrics:
        """Measure the weights on private held-out data: "eval/examples", "eval/loss", "eval/accuracy", … or {}."""
        ...
