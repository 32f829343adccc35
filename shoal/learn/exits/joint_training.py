"""Joint training of all exits, as a `TorchLearner`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from shoal.core.errors import InvalidJob
from shoal.core.exits.entropy import Floats, normalized_entropy
from shoal.core.exits.thresholds import answering_exits, checked_thresholds
from shoal.learn.data.batches import Data
from shoal.learn.exits.exit_network import ExitNetwork
from shoal.learn.seeds import seeded_to_build
from shoal.learn.training.measures import Measure
from shoal.learn.training.torch_learner import TorchLearner
from shoal.learn.user_errors import user_code

CURVE = tuple(step / 10 for step in range(11))
"""Thresholds of a curve."""


@dataclass(frozen=True)
class JointLoss:
    """The weighted sum of the exits' cross entropies (Teerapittayanon et al. 2017, section III.E)."""

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (all(isfinite(one) and one >= 0 for one in self.weights) and any(self.weights)):
            hint = "use numbers of at least 0, one of them greater"
            raise InvalidJob(f"the weights of the exits are {self.weights}", code="exits.weights", hint=hint)

    def __call__(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss of scores [batch, exits, classes]."""
        losses = [weight * cross_entropy(scores[:, number], target) for number, weight in enumerate(self.weights)]
        return torch.stack(losses).sum()


def exit_learner(
    model: Callable[[], nn.Module],
    train: Data,
    test: Data | None = None,
    *,
    weights: Sequence[float] = (),
    thresholds: Sequence[float] = (),
    curve: bool = False,
    **options: Any,
) -> TorchLearner:
    """Return a learner that trains all exits together.

    weights       of the exits' losses; 1 for each by default
    thresholds    of all exits but the last, for the metrics; without them the last exit answers everything
    curve         also measure at 0, 0.1, … 1 as threshold of all exits, for the dashboard's tab "Exits"
    options       further parameters of `TorchLearner`

    Metrics are `accuracy` of the answers, `accuracy_device` (`_edge`, `_cloud`) as if that level answered everything,
    and with thresholds `answered_device`, the fraction that the level answers; with a curve `accuracy@0.3` and
    `answered_device@0.3`. Raises `InvalidJob` for weights or thresholds that do not fit the network.
    """
    with user_code("making the model"), seeded_to_build(0):
        network = model()
    if not isinstance(network, ExitNetwork):
        text = f"the model is a {type(network).__name__}"
        raise InvalidJob(text, code="learner.model", hint="let the model function return an ExitNetwork")
    levels = network.levels
    weights = tuple(weights) or (1.0,) * len(levels)
    if len(weights) != len(levels):
        text, hint = f"{len(weights)} weights for {len(levels)} exits", "give one for each exit"
        raise InvalidJob(text, code="exits.weights", hint=hint)
    limits = checked_thresholds(thresholds, len(levels)) if thresholds else None
    metrics = exit_metrics(levels, limits) | (curve_metrics(levels) if curve else {})
    return TorchLearner(model, train, test, loss=JointLoss(weights), metrics=metrics, **options)


def exit_metrics(levels: Sequence[str], thresholds: Sequence[float] | None) -> dict[str, Measure]:
    """Return the metrics of `exit_learner`."""
    metrics: dict[str, Measure] = {"accuracy": partial(_accuracy, thresholds=thresholds)}
    for number, level in enumerate(levels):
        metrics[f"accuracy_{level}"] = partial(_accuracy_at, number=number)
        if thresholds is not None:
            metrics[f"answered_{level}"] = partial(_answered, thresholds=thresholds, number=number)
    return metrics


def curve_metrics(levels: Sequence[str]) -> dict[str, Measure]:
    """Return accuracy, and the fraction that each level but the last answers, at thresholds that all exits share."""
    metrics: dict[str, Measure] = {}
    for threshold in CURVE:
        shared = (threshold,) * (len(levels) - 1)
        metrics[f"accuracy@{threshold}"] = partial(_accuracy, thresholds=shared)
        for number, level in enumerate(levels[:-1]):
            metrics[f"answered_{level}@{threshold}"] = partial(_answered, thresholds=shared, number=number)
    return metrics


def _chosen(scores: Tensor, thresholds: Sequence[float] | None) -> Tensor:
    """Return the number of the exit that answers each example."""
    if thresholds is None:
        return torch.full((len(scores),), scores.shape[1] - 1)
    return torch.from_numpy(answering_exits(_entropies(scores), thresholds))


@lru_cache(maxsize=1)  # all points of a curve are measured on the same scores
def _entropies(scores: Tensor) -> Floats:
    """Return the entropy of each exit, [exits, examples]."""
    return normalized_entropy(scores.detach().float().cpu().numpy()).T


def _accuracy(scores: Tensor, target: Tensor, thresholds: Sequence[float] | None) -> Tensor:
    chosen = _chosen(scores, thresholds).to(scores.device)
    answers = scores.argmax(2).gather(1, chosen[:, None])[:, 0]
    return (answers == target).double().mean()


def _accuracy_at(scores: Tensor, target: Tensor, number: int) -> Tensor:
    return (scores[:, number].argmax(1) == target).double().mean()


def _answered(scores: Tensor, _: Tensor, thresholds: Sequence[float], number: int) -> Tensor:
    return (_chosen(scores, thresholds) == number).double().mean()
