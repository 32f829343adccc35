"""Kinds of estimators whose coefficients can be averaged: where these are, and how training goes on from given ones.

| family           | estimators                                                     | an epoch is                |
|------------------|----------------------------------------------------------------|----------------------------|
| `LinearFamily`   | SGDClassifier, SGDRegressor, Perceptron, PassiveAggressive…    | a pass of `partial_fit`    |
| `NetworkFamily`  | MLPClassifier, MLPRegressor (solvers adam and sgd)             | a pass of `partial_fit`    |
| `LogisticFamily` | LogisticRegression (solvers that can start from coefficients)  | an iteration of its solver |
"""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import Array
from shoal.learn.arrays.array_batches import generator_of

Estimator = Any
Batch = tuple[Any, Any]
"""Inputs, `float64[n, features]` or sparse, and targets."""

CODE = "learner.model"
NO_STEP = 1e-300
"""A learning rate by which nothing moves."""
INSTEAD = {
    "ElasticNet": "SGDRegressor(penalty='elasticnet')",
    "Lasso": "SGDRegressor(penalty='l1')",
    "LinearRegression": "SGDRegressor(penalty=None)",
    "LinearSVC": "SGDClassifier(loss='hinge')",
    "LinearSVR": "SGDRegressor(loss='epsilon_insensitive')",
    "LogisticRegression": "another solver, for example lbfgs",
    "MLPClassifier": "solver='adam' or 'sgd'",
    "MLPRegressor": "solver='adam' or 'sgd'",
    "Ridge": "SGDRegressor(penalty='l2')",
    "RidgeClassifier": "SGDClassifier(loss='squared_error')",
}


class EstimatorFamily(ABC):
    """An estimator, and a fitted one of the same form that is filled with coefficients."""

    by_batches: ClassVar[bool] = True
    """True if it trains on one mini-batch after the other; else on all data at once."""

    def __init__(self, estimator: Estimator, classes: Array | None, features: int, targets: Array) -> None:
        self.estimator, self.classes = estimator, classes
        labels = targets[:1] if classes is None else classes[:1]
        self.example: Batch = np.zeros((1, features)), labels
        self.template = self._fitted_once()

    @abstractmethod
    def arrays(self, fitted: Estimator) -> dict[str, Array]:
        """Return the exchanged tensors of a fitted estimator."""

    @abstractmethod
    def fill(self, fitted: Estimator, model: Mapping[str, Array]) -> None:
        """Give a fitted estimator these tensors."""

    @abstractmethod
    def train(self, model: Mapping[str, Array], batches: Iterator[Batch], config: TrainConfig) -> Estimator:
        """Return an estimator that was trained from these tensors."""

    def start(self, seed: int) -> dict[str, Array]:
        """Return fresh tensors."""
        return {name: np.zeros_like(array) for name, array in self.arrays(self.template).items()}

    def filled(self, model: Mapping[str, Array]) -> Estimator:
        """Return a fitted estimator with these tensors."""
        fitted = copy.deepcopy(self.template)
        self.fill(fitted, model)
        return fitted

    def partial_fit(self, estimator: Estimator, batch: Batch) -> None:
        """Train on a batch; classes that it lacks are there all the same."""
        estimator.partial_fit(*batch, **({} if self.classes is None else {"classes": self.classes}))

    def _fitted_once(self) -> Estimator:
        fitted = clone(self.estimator)
        self.partial_fit(fitted, self.example)
        return fitted


class LinearFamily(EstimatorFamily):
    """Linear models by stochastic gradient descent, one step per example."""

    def arrays(self, fitted: Estimator) -> dict[str, Array]:
        # The greatest of whole numbers wins: learning rates that fall with t_ go on falling.
        return {"coef_": fitted.coef_, "intercept_": fitted.intercept_, "t_": np.array(round(fitted.t_), np.int64)}

    def fill(self, fitted: Estimator, model: Mapping[str, Array]) -> None:
        fitted.coef_, fitted.intercept_ = model["coef_"].copy(), model["intercept_"].copy()
        fitted.t_ = float(model["t_"])

    def start(self, seed: int) -> dict[str, Array]:
        return {**super().start(seed), "t_": np.array(1, np.int64)}

    def train(self, model: Mapping[str, Array], batches: Iterator[Batch], config: TrainConfig) -> Estimator:
        fitted = self.filled(model)
        given = fitted.get_params()
        fitted.set_params(random_state=generator_of(config.seed))
        if "eta0" in given and given.get("learning_rate", "constant") in {"constant", "invscaling", "adaptive"}:
            fitted.set_params(eta0=config.lr)
        for batch in batches:
            self.partial_fit(fitted, batch)
        return fitted


class GivenWeights(np.random.RandomState):
    """A generator whose first uniform numbers are given: a network that draws its first weights begins with these."""

    def __init__(self, seed: int, arrays: list[Array]) -> None:
        super().__init__(seed % 2**32)
        self._arrays = arrays

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        """Return the next of the given arrays. Raises `LearnerFailed` where another shape is asked for."""
        if not self._arrays:
            return super().uniform(low, high, size)
        if self._arrays[0].shape != (size if isinstance(size, tuple) else (size,)):
            raise LearnerFailed("this version of scikit-learn draws the weights of its networks otherwise", code=CODE)
        return self._arrays.pop(0).copy()


class NetworkFamily(EstimatorFamily):
    """Multi-layer perceptrons. Each task begins with a new optimizer, as `TorchLearner` does."""

    def arrays(self, fitted: Estimator) -> dict[str, Array]:
        weights = {f"coefs_.{place}": array for place, array in enumerate(fitted.coefs_)}
        return weights | {f"intercepts_.{place}": array for place, array in enumerate(fitted.intercepts_)}

    def fill(self, fitted: Estimator, model: Mapping[str, Array]) -> None:
        for kind in ("coefs_", "intercepts_"):
            setattr(fitted, kind, [model[f"{kind}.{place}"].copy() for place in range(len(fitted.coefs_))])

    def start(self, seed: int) -> dict[str, Array]:
        fresh = clone(self.estimator).set_params(random_state=seed % 2**32, learning_rate_init=NO_STEP)
        self.partial_fit(fresh, self.example)
        return self.arrays(fresh)

    def train(self, model: Mapping[str, Array], batches: Iterator[Batch], config: TrainConfig) -> Estimator:
        layers = range(len(self.template.coefs_))
        given = [model[f"{kind}.{place}"] for place in layers for kind in ("coefs_", "intercepts_")]
        fitted = clone(self.estimator)
        fitted.set_params(random_state=GivenWeights(config.seed, given), learning_rate_init=config.lr)
        begun = False
        for batch in batches:
            self.partial_fit(fitted.set_params(batch_size=batch[0].shape[0]), batch)
            begun = True
        return fitted if begun else self.filled(model)


class LogisticFamily(EstimatorFamily):
    """Logistic regression, which goes on from the received coefficients on all data of the node."""

    by_batches = False

    def arrays(self, fitted: Estimator) -> dict[str, Array]:
        return {"coef_": fitted.coef_, "intercept_": fitted.intercept_}

    def fill(self, fitted: Estimator, model: Mapping[str, Array]) -> None:
        fitted.coef_, fitted.intercept_ = model["coef_"].copy(), model["intercept_"].copy()

    def train(self, model: Mapping[str, Array], batches: Iterator[Batch], config: TrainConfig) -> Estimator:
        if config.batch_index >= 0:
            raise LearnerFailed(
                "LogisticRegression trains on all data at once, and the algorithm asks for mini-batches",
                code=CODE,
                hint="use SGDClassifier(loss='log_loss')",
            )
        fitted = self.filled(model)
        fitted.set_params(warm_start=True, max_iter=config.steps or math.ceil(config.epochs))
        fitted.set_params(random_state=generator_of(config.seed))
        for batch in batches:
            self._fit(fitted, *batch)
        return fitted

    def _fitted_once(self) -> Estimator:
        fitted = clone(self.estimator)
        self._fit(fitted, self.example[0][:0], self.example[1][:0])
        return fitted

    def _fit(self, fitted: Estimator, x: Any, y: Array) -> None:
        """Fit with an example of each class that has no weight, because it learns only classes that it sees."""
        assert self.classes is not None
        zeros = np.zeros((len(self.classes), self.example[0].shape[1]))
        weights = np.concatenate([np.ones(x.shape[0]), np.full(len(zeros), 0.0 if x.shape[0] else 1.0)])
        dense = x.toarray() if hasattr(x, "toarray") else x
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a few iterations per round are meant
            fitted.fit(np.concatenate([dense, zeros]), np.concatenate([y, self.classes]), sample_weight=weights)


def family_of(estimator: Estimator, classes: Array | None, features: int, targets: Array) -> EstimatorFamily:
    """Return the family of an estimator. Raises `InvalidJob`, by name, for one that cannot be averaged."""
    if getattr(estimator, "average", False):
        raise InvalidJob(
            f"{type(estimator).__name__} has average={estimator.average}, and its sums are not exchanged",
            code=CODE,
            hint="leave average out: nodes' models are averaged anyway",
        )
    if isinstance(estimator, LogisticRegression) and estimator.solver != "liblinear":
        return LogisticFamily(estimator, classes, features, targets)
    if hasattr(estimator, "partial_fit") and (is_classifier(estimator) or is_regressor(estimator)):
        if hasattr(estimator, "hidden_layer_sizes"):
            return NetworkFamily(estimator, classes, features, targets)
        found = LinearFamily(estimator, classes, features, targets)
        if all(hasattr(found.template, name) for name in ("coef_", "intercept_", "t_")):
            return found
    raise not_averaged(estimator)


def not_averaged(estimator: Estimator) -> InvalidJob:
    """Return the refusal of an estimator, and what to use instead."""
    name = type(estimator).__name__
    others = "SGDClassifier, SGDRegressor, LogisticRegression, MLPClassifier or MLPRegressor"
    return InvalidJob(
        f"models of {name} cannot be averaged: it cannot go on training from given coefficients",
        code=CODE,
        hint=f"use {INSTEAD.get(name, others)}",
    )
