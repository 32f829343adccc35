"""What an algorithm needs of a learner beyond its six methods, and the refusal of a learner that lacks it.

A learner declares a capability by an attribute; one that it does not declare it does not have. Nothing else could tell:
a `train` that takes `correct` and ignores it gives a model, only not that of the algorithm.

    corrections     applies_corrections = True      `train` passes every gradient through `correct`
    teaching        def teach(teacher, weight)      see `shoal.core.learner.Teachable`
"""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.learner import Budget, Correct, Learner, Teachable, Tick, Trained
from shoal.core.tree import Tree

Capability = Literal["corrections", "teaching"]


class Demanding(Protocol):
    """What is read of an algorithm."""

    name: ClassVar[str]

    @property
    def needs(self) -> frozenset[Capability]: ...


CODE = "learner.capability"

DECLARED: dict[Capability, str] = {"corrections": "applies_corrections = True", "teaching": "a method teach"}
"""How a learner declares each."""

_LACKS: dict[Capability, tuple[str, str]] = {
    "corrections": (
        "corrects every local gradient, and {learner} does not declare that it applies corrections",
        "let its train replace each gradient by correct(weights, gradient) and declare applies_corrections = True",
    ),
    "teaching": (
        "lets models teach each other, and {learner} has no method teach",
        "give it a method teach(teacher, weight), or use TorchLearner",
    ),
}


def has(learner: Learner, capability: Capability) -> bool:
    """Return whether the learner declares the capability."""
    if capability == "teaching":
        return isinstance(learner, Teachable)
    return getattr(learner, "applies_corrections", False) is True


def misfit(algorithm: Demanding, learner: Learner) -> InvalidJob | None:
    """Return why the learner cannot do the algorithm's work, and what to do; None: it can."""
    for capability in sorted(algorithm.needs):
        if not has(learner, capability):
            why, hint = _LACKS[capability]
            text = f"{algorithm.name} {why.format(learner=type(learner).__name__)}"
            return InvalidJob(text, code=CODE, hint=f"{hint}; or choose another algorithm, for example fedavg")
    return None


def check_learner(algorithm: Demanding, learner: Learner) -> None:
    """Raise `InvalidJob` where the learner lacks what the algorithm needs."""
    if (error := misfit(algorithm, learner)) is not None:
        raise error


def train_corrected(learner: Learner, budget: Budget, correct: Correct, tick: Tick) -> Trained:
    """Train with corrected gradients. Raise `LearnerFailed` where the learner has corrected none of them."""
    corrected = 0

    def counted(weights: Tree, gradient: Tree) -> Tree:
        nonlocal corrected
        corrected += 1
        return correct(weights, gradient)

    trained = learner.train(budget, correct=counted, tick=tick)
    if not corrected and (budget.steps or budget.epochs):
        raise LearnerFailed(
            f"{type(learner).__name__} declares applies_corrections, but its train has not called correct",
            code=CODE,
            hint="let train replace each gradient by correct(weights, gradient) before it steps",
        )
    return trained
