"""Capabilities that an algorithm needs of a learner beyond its six methods, and the refusal of a learner without
them.

A learner declares a capability by an attribute. Only a declaration can tell: a `train` that takes `correct` and ignores
it gives a model, but not that of the algorithm.

corrections     applies_corrections = True      `train` passes every gradient through `correct`
teaching        def teach(teacher, weight)      see `shoal.core.algorithm.learner.Teachable`
trees           def sketch, def histogram       see `shoal.core.algorithm.learner.GrowsTrees`
optimizer_state def optimizer_state, def load_optimizer_state, see `shoal.core.algorithm.learner.KeepsOptimizer`
gradients       gives_gradients = False         `gradient` cannot be computed; every other learner has the capability
plain_sgd       other_optimizer = "Adam"        `train` steps by that; every other learner has the capability

A `restriction` takes capabilities away from a learner, as a model in parts does.

A learner of trees has no weights that other algorithms could average, so these refuse it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Protocol

from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import Learner, Progress, TrainConfig, Trained
from shoal.core.errors import InvalidJob, LearnerFailed

Capability = Literal["corrections", "teaching", "trees", "optimizer_state", "gradients", "plain_sgd"]


class CapabilityUser(Protocol):
    """The needed fields of an algorithm."""

    name: ClassVar[str]

    @property
    def required_capabilities(self) -> frozenset[Capability]: ...


CODE = "learner.capability"

DECLARED: dict[Capability, str] = {
    "corrections": "applies_corrections = True",
    "teaching": "a method teach",
    "trees": "methods sketch and histogram",
    "optimizer_state": "methods optimizer_state and load_optimizer_state",
}
"""Declaration of each capability that a learner does not have by its six methods."""

_METHODS: dict[Capability, tuple[str, ...]] = {
    "teaching": ("teach",),
    "trees": ("sketch", "histogram"),
    "optimizer_state": ("optimizer_state", "load_optimizer_state"),
}
"""Methods that declare a capability. `isinstance` with the protocols takes thirteen times as long, at each task."""

_LACKS: dict[Capability, tuple[str, str, str]] = {
    "corrections": (
        "corrects every local gradient",
        "{learner} does not declare that it applies corrections",
        "let its train replace each gradient by correct(weights, gradient) and declare applies_corrections = True",
    ),
    "teaching": (
        "lets models teach each other",
        "{learner} has no method teach",
        "give it a method teach(teacher, weight), or use TorchLearner",
    ),
    "trees": (
        "grows decision trees",
        "{learner} has no methods sketch and histogram",
        "use shoal.learn.trees.TreesLearner",
    ),
    "optimizer_state": (
        "keeps the local optimizer's state",
        "{learner} has no methods optimizer_state and load_optimizer_state",
        "use TorchLearner",
    ),
    "gradients": (
        "steps along the gradient over all data of a node",
        "{learner} declares that it gives none",
        "use TorchLearner",
    ),
    "plain_sgd": (
        "is made for local steps of plain SGD",
        "the optimizer of {learner} is {optimizer}",
        "let the learner's optimizer be torch.optim.SGD without momentum and weight decay",
    ),
}
"""Use that an algorithm makes of each capability; why a learner does not have it, and what to do."""

Lack = tuple[str, str]
"""The reason that an algorithm cannot use a learner, to be read after the algorithm's name, and the remedy."""


@dataclass(frozen=True)
class Restriction:
    """Capabilities that a learner does not have, whatever it declares; why, and what to do."""

    lacks: frozenset[Capability]
    why: str
    hint: str


def restricted(restriction: Restriction | None, capability: Capability) -> Lack | None:
    """Return why a restriction takes a capability away; None: it does not."""
    if restriction is None or capability not in restriction.lacks:
        return None
    return f"{_LACKS[capability][0]}, and {restriction.why}", restriction.hint


def has_capability(learner: Learner, capability: Capability) -> bool:
    """Return whether the learner declares the capability."""
    if capability in _METHODS:
        return all(callable(getattr(learner, name, None)) for name in _METHODS[capability])
    if capability == "gradients":
        return getattr(learner, "gives_gradients", True) is not False
    if capability == "plain_sgd":
        return not getattr(learner, "other_optimizer", "")
    return getattr(learner, "applies_corrections", False) is True


def lack_of(learner: Learner, capability: Capability) -> Lack | None:
    """Return why the learner does not have a capability; None: it has."""
    if (lack := restricted(getattr(learner, "restriction", None), capability)) is not None:
        return lack
    if has_capability(learner, capability):
        return None
    use, why, hint = _LACKS[capability]
    optimizer = getattr(learner, "other_optimizer", "") if capability == "plain_sgd" else ""
    return f"{use}, and {why.format(learner=type(learner).__name__, optimizer=optimizer)}", hint


def declared_lacks(learner: Learner) -> dict[Capability, Lack]:
    """Return the capabilities that the learner does not have, for another process; without "plain_sgd", for which the
    user's code makes the optimizer."""
    found = {one: lack_of(learner, one) for one in _LACKS if one != "plain_sgd"}
    return {one: lack for one, lack in found.items() if lack is not None}


def capability_refusal(algorithm: CapabilityUser, lack: Callable[[Capability], Lack | None]) -> InvalidJob | None:
    """Return why a learner cannot do the algorithm's work, by what `lack` tells of it; None: it can."""
    for capability in sorted(algorithm.required_capabilities):
        if (found := lack(capability)) is not None:
            return lack_error(algorithm.name, found)
    if "trees" not in algorithm.required_capabilities and lack("trees") is None:
        text = f"{algorithm.name} trains weights, and the learner grows decision trees"
        return InvalidJob(text, code=CODE, hint="choose the algorithm boosted_trees")
    return None


def lack_error(asking: str, lack: Lack) -> InvalidJob:
    """Return the error of a learner that lacks what is asked of it."""
    text, hint = f"{asking} {lack[0]}", f"{lack[1]}; or choose another algorithm, for example fedavg"
    return InvalidJob(text, code=CODE, hint=hint)


def capability_error(algorithm: CapabilityUser, learner: Learner) -> InvalidJob | None:
    """Return why the learner cannot do the algorithm's work, and what to do; None: it can."""
    if not algorithm.required_capabilities and not has_capability(learner, "trees"):
        return None  # asked at each task, and nearly always so
    return capability_refusal(algorithm, partial(lack_of, learner))


def check_learner(algorithm: CapabilityUser, learner: Learner) -> None:
    """Raise `InvalidJob` where the learner lacks what the algorithm needs."""
    if (error := capability_error(algorithm, learner)) is not None:
        raise error


def train_corrected(learner: Learner, config: TrainConfig, correction: Correction, progress: Progress) -> Trained:
    """Train with corrected gradients. Raise `LearnerFailed` where the learner has corrected none of them."""
    correction.source = f"correct of {type(learner).__name__}.train"
    trained = learner.train(config, correct=correction, progress=progress)
    if not correction.steps and (config.steps or config.epochs):
        raise LearnerFailed(
            f"{type(learner).__name__} declares applies_corrections, but its train has not called correct",
            code=CODE,
            hint="let train replace each gradient by correct(weights, gradient) before it steps",
        )
    return trained


def train(learner: Learner, config: TrainConfig, correction: Correction | None, progress: Progress) -> Trained:
    """Train, with corrected gradients if there is a correction."""
    if correction is None:
        return learner.train(config, progress=progress)
    return train_corrected(learner, config, correction, progress)
