"""The user's model and data, as the rest sees them. `shoal.learn.TorchLearner` is one; anything with these methods is.

A learner may keep what it likes between calls except randomness: each call gets its seed in the config, so that the
same order gives the same result on any day, before or after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.errors.phrases import counted
from shoal.core.model.tree import Array, Tree
from shoal.core.protocol.message import Metrics

Correct = Callable[[Tree, Tree], Tree]
"""`(weights, gradient) -> gradient`: applied at every local step (FedProx, SCAFFOLD, ADMM). Algorithms pass a
`shoal.core.algorithm.correction.Correction`, which a learner may also apply from its fields."""

ExtraLoss = Callable[[Any, Any], Any]
"""`(batch, output) -> loss` added to the user's loss at every local step (distillation)."""

Progress = Callable[[float], None]
"""Called often with the fraction done, 0 to 1. Raises `Cancelled` when the result is no longer wanted."""


CODE = "learner.weights"
"""Error code of weights and gradients that are not arrays by name."""


def no_progress(fraction: float) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class TrainConfig:
    """Amount of training. `steps` > 0 counts mini-batches and overrules `epochs`; `batch_size` 0: all at once."""

    epochs: float = 1.0
    steps: int = 0
    batch_size: int = 32
    lr: float = 0.1
    seed: int = 0
    batch_index: int = -1
    """Index, in the node's own endless sequence of mini-batches, of the first one to train on; -1: no sequence, a fresh
    shuffle by `seed`. With an index, `Trained.weight` is the number of examples trained on in this call."""
    sequence_seed: int = 0
    """Seed of the order of examples in the sequence. It stays as the index moves on."""


@dataclass(frozen=True)
class Trained:
    """`weight`: how many examples the result speaks for. `metrics`: "train/loss" and what else the learner measures."""

    weight: float
    metrics: Metrics = field(default_factory=dict)


@runtime_checkable
class CountsExamples(Protocol):
    """A learner that knows how many examples it trains on. Optional: only training for a number of passes needs it."""

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

    def histogram(self, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        """Return the sums of gradients and Hessians that the loaded ensemble needs next, and "train/loss"."""
        ...


class KeepsOptimizer(Protocol):
    """A learner whose optimizer's state can be read and set. Optional: only algorithms that keep it need it."""

    def optimizer_state(self) -> Mapping[str, Array]:
        """Return the optimizer's state after the last training: arrays by names of the learner's choice."""
        ...

    def load_optimizer_state(self, state: Tree | None) -> None:
        """Begin the next training with this state; None: with a new optimizer."""
        ...


class Staged(Protocol):
    """A learner with a model, and maybe data, for each stage of a job. Optional: only jobs with stages need it."""

    stages: int
    """The number of stages."""

    def enter_stage(self, stage: int) -> None:
        """Use the model and the data of that stage from now on."""
        ...

    def grow(self, model: Tree, seed: int) -> Mapping[str, Array]:
        """Enter the next stage and return weights with which it computes what `model` did: the same on every node."""
        ...


class Learner(Protocol):
    """Weights, and the private data that they are trained on.

    Weights and gradients are trees, or dictionaries of arrays by name; `load` gets a tree, which is read like a
    dictionary.

    A learner whose `train` corrects every gradient by `correct` declares `applies_corrections = True`; fedprox,
    scaffold and admm refuse others (`shoal.core.algorithm.capability`).
    """

    def init(self, seed: int) -> Mapping[str, Array]:
        """Make and load fresh weights, the same for the same seed on every node, and return them."""
        ...

    def load(self, model: Tree) -> None:
        """Take these weights. Raises `InvalidPayload` when they do not fit the model."""
        ...

    def model(self) -> Mapping[str, Array]:
        """Return a copy of the present weights."""
        ...

    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        """Train on the private data from the present weights."""
        ...

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Mapping[str, Array]]:
        """Return the mean gradient over all private data (or `steps` batches) at the present weights, which do not
        move. Statistics and whole numbers of the tree are values: those after this pass."""
        ...

    def evaluate(self) -> Metrics:
        """Measure the weights on private held-out data: "eval/examples", "eval/loss", "eval/accuracy", … or {}."""
        ...


def fresh_weights(learner: Learner, seed: int) -> Tree:
    """Return fresh weights of a learner. Raises `LearnerFailed` for other things than named arrays."""
    return as_tree(learner.init(seed), f"{type(learner).__name__}.init")


def present_weights(learner: Learner) -> Tree:
    """Return a copy of a learner's weights. Raises `LearnerFailed` for other things than named arrays."""
    return as_tree(learner.model(), f"{type(learner).__name__}.model")


def mean_gradient(learner: Learner, config: TrainConfig, progress: Progress) -> tuple[Trained, Tree]:
    """Return a learner's gradient. Raises `LearnerFailed` for other things than named arrays."""
    trained, gradient = learner.gradient(config, progress=progress)
    return trained, as_tree(gradient, f"{type(learner).__name__}.gradient")


def check_stages(learner: Learner, stages: int) -> None:
    """Raise `InvalidJob` for a learner with fewer stages than that."""
    known = getattr(learner, "stages", 1)
    if known < stages:
        text = f"the job has {counted(stages, 'stage')}, and {type(learner).__name__} has {counted(known, 'stage')}"
        raise InvalidJob(text, code="learner.stages", hint="use shoal.learn.GrowingLearner with the job's stages")


def enter_stage(learner: Learner, stage: int) -> None:
    """Let a learner work in that stage of its job. Raises `InvalidJob` if it has no such stage."""
    if stage or hasattr(learner, "stages"):
        check_stages(learner, stage + 1)
        cast("Staged", learner).enter_stage(stage)


def grown_weights(learner: Learner, model: Tree, stage: int, seed: int) -> Tree:
    """Return the first weights of a stage, grown from a model of the stage before. Raises as `enter_stage`."""
    check_stages(learner, stage + 1)
    staged = cast("Staged", learner)
    staged.enter_stage(stage - 1)
    return as_tree(staged.grow(model, seed), f"{type(learner).__name__}.grow")


def as_tree(value: object, source: str) -> Tree:
    """Return a tree as it is, or that of a dictionary of arrays. Raises `LearnerFailed`, which names the source."""
    if isinstance(value, Tree):
        return value
    hint = "return a shoal.core.model.tree.Tree, or a dictionary of arrays of numbers by name"
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise LearnerFailed(f"{source} gives {type(value).__name__}, not arrays by name", code=CODE, hint=hint)
    try:
        return Tree.of(value)
    except (TypeError, ValueError, KeyError, InvalidPayload) as error:
        raise LearnerFailed(f"{source} gives no arrays of numbers: {error}", code=CODE, hint=hint) from error
