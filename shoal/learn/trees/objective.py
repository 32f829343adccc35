"""Losses of boosted trees, under the names that XGBoost gives them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from shoal.core.boosting.ensemble import Wide, on_grid
from shoal.core.errors import InvalidJob
from shoal.core.protocol.message import Metrics

MEAN_MIN = 1e-6
"""The mean label stays that far from 0 and 1, whose margins are infinite."""


class Objective(ABC):
    """A loss of margin and label, with its first two derivatives by the margin."""

    @abstractmethod
    def check(self, y: Wide) -> str:
        """Return what is wrong with labels; "" if nothing is."""

    @abstractmethod
    def scale(self, y: Wide) -> float:
        """Return a bound of the labels' magnitude."""

    @abstractmethod
    def margin(self, mean: float) -> float:
        """Return the margin whose prediction is that mean label."""

    @abstractmethod
    def predict(self, margins: Wide) -> Wide:
        """Return the predictions."""

    @abstractmethod
    def derivatives(self, margins: Wide, y: Wide) -> tuple[Wide, Wide]:
        """Return gradients and Hessians."""

    @abstractmethod
    def loss(self, margins: Wide, y: Wide) -> float:
        """Return the mean loss."""

    @abstractmethod
    def measure(self, margins: Wide, y: Wide) -> Metrics:
        """Return further metrics, by name."""


class Logistic(Objective):
    """Cross entropy of two classes, 0 and 1."""

    def check(self, y: Wide) -> str:
        """Return the first label that is neither 0 nor 1."""
        other = y[(y != 0) & (y != 1)]
        return f"a label is {other[0]:g}; binary:logistic knows 0 and 1" if len(other) else ""

    def scale(self, y: Wide) -> float:
        """Return 1."""
        return 1.0

    def margin(self, mean: float) -> float:
        """Return the logit."""
        mean = min(max(mean, MEAN_MIN), 1 - MEAN_MIN)
        return float(np.log(mean / (1 - mean)))

    def predict(self, margins: Wide) -> Wide:
        """Return the probabilities of class 1."""
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-margins)))

    def derivatives(self, margins: Wide, y: Wide) -> tuple[Wide, Wide]:
        """Return p - y and p (1 - p)."""
        p = self.predict(margins)
        return p - y, p * (1 - p)

    def loss(self, margins: Wide, y: Wide) -> float:
        """Return the mean cross entropy."""
        return float(np.mean(np.logaddexp(0, margins) - y * margins))

    def measure(self, margins: Wide, y: Wide) -> Metrics:
        """Return the accuracy, and the area under the ROC curve where there are both classes."""
        found = {"accuracy": float(np.mean((margins > 0) == (y > 0.5)))}
        return found if y.min() == y.max() else found | {"auc": auc(margins, y)}


class SquaredError(Objective):
    """(margin - y)^2, whose gradient XGBoost halves."""

    def check(self, y: Wide) -> str:
        """Return "": any finite label will do."""
        return ""

    def scale(self, y: Wide) -> float:
        """Return the greatest magnitude."""
        return float(np.abs(y).max()) or 1.0

    def margin(self, mean: float) -> float:
        """Return the mean."""
        return mean

    def predict(self, margins: Wide) -> Wide:
        """Return the margins."""
        return margins

    def derivatives(self, margins: Wide, y: Wide) -> tuple[Wide, Wide]:
        """Return margin - y, and ones."""
        return margins - y, np.ones_like(margins)

    def loss(self, margins: Wide, y: Wide) -> float:
        """Return the mean squared error."""
        return float(np.mean((margins - y) ** 2))

    def measure(self, margins: Wide, y: Wide) -> Metrics:
        """Return nothing more."""
        return {}


_KNOWN = {"binary:logistic": Logistic, "reg:squarederror": SquaredError}


def objective_of(name: str) -> Objective:
    """Return the objective of that name. Raises `InvalidJob` for an unknown one."""
    if name not in _KNOWN:
        text = f"no objective is called {name!r}"
        raise InvalidJob(text, code="learner.objective", hint=f"there are {' and '.join(_KNOWN)}")
    return _KNOWN[name]()


def exact_derivatives(objective: Objective, margins: Wide, y: Wide, scale: float) -> tuple[Wide, Wide]:
    """Return gradients and Hessians whose sums are exact."""
    gradients, hessians = objective.derivatives(margins, y)
    return on_grid(gradients, scale), on_grid(hessians)


def auc(margins: Wide, y: Wide) -> float:
    """Return the area under the ROC curve: the share of pairs of both classes that are in order, ties as halves."""
    _, place, times = np.unique(margins, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(times) - (times - 1) / 2)[place]
    positive = float(y.sum())
    negative = len(y) - positive
    return float((ranks[y > 0.5].sum() - positive * (positive + 1) / 2) / (positive * negative))
