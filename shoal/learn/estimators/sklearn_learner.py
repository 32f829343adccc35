"""An estimator of scikit-learn and data as a `Learner`.

learner = SklearnLearner(SGDClassifier(loss="log_loss"), (x, y), (x_test, y_test), classes=["benign", "malignant"])
fitted = learner.estimator(shoal.load_model("model.safetensors"))       # predicts
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from shoal.core.algorithm.learner import Correct, ExtraLoss, Progress, TrainConfig, Trained, no_progress
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import Array, Layout, Tree, digest, same_layout
from shoal.core.protocol.message import Metrics
from shoal.learn.arrays.array_batches import ArraySource, generator_of
from shoal.learn.arrays.array_learner import CountedBatches, mean_metrics, seeded_code
from shoal.learn.data.kinds import is_empty
from shoal.learn.data.passes import training_batches
from shoal.learn.estimators.families import CODE, Batch, Estimator, family_of, not_averaged
from shoal.learn.user_errors import user_code

Score = Callable[[Any, Any], float]
"""`(target, prediction) -> number`, the mean over the batch."""

LABELS_SHOWN = 200
"""Maximum length of the classes in the name of a tensor; longer ones are replaced by their SHA-256."""


class SklearnLearner:
    """A `Learner` for an estimator of scikit-learn that goes on training from given coefficients.

    estimator   SGDClassifier, SGDRegressor, Perceptron, LogisticRegression, MLPClassifier, MLPRegressor, or a Pipeline
                that ends with one; its other steps are fitted already, or need no fit, and are the same on every node
    train       arrays (x, y), or a list of examples
    test        data of the same kind for evaluation; None: this node does not evaluate
    classes     all labels that any node may have; a classifier needs them
    metrics     name -> (target, prediction) -> number, the mean over the batch; default: accuracy for classifiers

    The job's lr replaces `eta0` and `learning_rate_init`, its batch size `batch_size`, its seeds `random_state`. Raises
    `InvalidJob` for unusable data or estimators, and `LearnerFailed` for errors while they train.
    """

    applies_corrections = False
    gives_gradients = False

    def __init__(
        self,
        estimator: Estimator,
        train: Any,
        test: Any = None,
        *,
        classes: Sequence[Any] | None = None,
        metrics: Mapping[str, Score] | None = None,
    ) -> None:
        self._steps = estimator.steps[:-1] if isinstance(estimator, Pipeline) else []
        self._last = estimator.steps[-1] if isinstance(estimator, Pipeline) else ("", estimator)
        final, self._metrics = self._last[1], metrics
        if isinstance(final, type) or not hasattr(final, "fit"):
            kind = final.__name__ if isinstance(final, type) else type(final).__name__
            raise InvalidJob(f"{kind} is not an estimator", code=CODE, hint="give an object, not its class")
        _check_fitted(self._steps)
        self._classes = _agreed(final, classes)
        with user_code("reading the data"):
            self.train_data = ArraySource(train, text=True)
            self.test_data = None if test is None or is_empty(test) else ArraySource(test, text=True)
            for source in (self.train_data, self.test_data):
                self._check_labels(source)
            x, y = self._prepared(self.train_data.take(np.arange(1)))
        with user_code(f"making the {type(final).__name__}"):
            self._family = family_of(final, self._classes, x.shape[1], y)
        self._weights = self._tree(self._family.arrays(self._family.template))

    @property
    def examples(self) -> int:
        """The number of training examples."""
        return self.train_data.examples

    @property
    def layout(self) -> Layout:
        """Return names, types and shapes of the exchanged coefficients."""
        return self._weights.layout

    # --------------------------------------------------------------------------------------------------------- weights
    def init(self, seed: int) -> Tree:
        """Return and load fresh coefficients: 0 for linear models, drawn by the seed for networks."""
        with user_code("making the estimator"):
            self._weights = self._tree(self._family.start(seed))
        return self._weights

    def load(self, model: Tree) -> None:
        """Take these coefficients. Raises `InvalidPayload` when they do not fit."""
        same_layout(self.layout, model.layout)
        self._weights = Tree(model.layout, model.buffer)

    def model(self) -> Tree:
        """Return the present coefficients."""
        return self._weights

    def estimator(self, model: Tree | None = None) -> Estimator:
        """Return a fitted estimator, or pipeline, with a model's coefficients, or the present ones."""
        if model is not None:
            same_layout(self.layout, model.layout)
        fitted = self._family.filled(self._weights if model is None else model)
        return Pipeline([*self._steps, (self._last[0], fitted)]) if self._steps else fitted

    def predict(self, inputs: Any) -> Array:
        """Return the probability of each class, or the predicted values of an estimator without probabilities."""
        fitted = self.estimator()
        with user_code("predicting"):
            return np.asarray(getattr(fitted, "predict_proba", fitted.predict)(inputs))

    def _tree(self, arrays: dict[str, Array]) -> Tree:
        """Return a tree that fits those of nodes alone that have the same classes and the same fitted steps."""
        named = {name: np.asarray(array) for name, array in arrays.items()}
        if self._classes is not None:
            named[_named_classes(self._classes)] = np.zeros(0, np.uint8)
        fixed = _fitted_arrays(self._steps)
        return Tree.of(named, base_model=digest(Tree.of(fixed)) if fixed else "")

    # -------------------------------------------------------------------------------------------------------- training
    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        """Train from the present coefficients, which change when all went well."""
        with seeded_code("training", config.seed, progress):
            shuffle = generator_of(config.seed)
            counted = CountedBatches(training_batches(self.train_data, config, shuffle, progress))
            batches = self._reporting(counted, progress) if self._family.by_batches else self._whole(progress)
            fitted = None
            if config.lr:  # else nothing is learned, only weighed
                fitted = self._family.train(self._weights, batches, config)
                self._weights = self._tree(self._family.arrays(fitted))
            for _ in counted if config.batch_index >= 0 else ():
                pass
        losses = getattr(fitted, "loss_curve_", [])
        weight = counted.examples if config.batch_index >= 0 else self.examples
        return Trained(float(weight), {"train/loss": float(np.mean(losses))} if losses else {})

    def _reporting(self, counted: CountedBatches, progress: Progress) -> Iterator[Batch]:
        for batch, fraction in counted:
            yield self._prepared(batch)
            progress(fraction)

    def _whole(self, progress: Progress) -> Iterator[Batch]:
        for batch in self.train_data.epoch(0, None):
            yield self._prepared(batch)
            progress(1.0)

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        """Raise `LearnerFailed`: scikit-learn gives no gradients."""
        raise LearnerFailed("scikit-learn gives no gradients", code="learner.capability", hint="use fedavg, or another")

    # ------------------------------------------------------------------------------------------------------ evaluation
    def evaluate(self) -> Metrics:
        """Return "eval/examples" and each metric as "eval/NAME", on the test data; {} without test data."""
        if self.test_data is None:
            return {}
        with seeded_code("evaluating", 0):
            fitted = self._family.filled(self._weights)
            return mean_metrics(self.test_data, lambda batch: self._measured(fitted, *self._prepared(batch)))

    def _measured(self, fitted: Estimator, x: Any, y: Array) -> dict[str, float]:
        predicted = fitted.predict(x)
        if self._classes is None:
            found = {"loss": float(np.mean((predicted - y) ** 2))}
        else:
            found = {"accuracy": float(np.mean(predicted == y))}
            if hasattr(fitted, "predict_proba"):
                right = fitted.predict_proba(x)[np.arange(len(y)), np.searchsorted(self._classes, y)]
                found["loss"] = float(-np.mean(np.log(np.maximum(right, np.finfo(float).tiny))))
        if self._metrics is None:
            return found
        loss = {"loss": found["loss"]} if "loss" in found else {}
        return loss | {name: score(y, predicted) for name, score in self._metrics.items()}

    # ------------------------------------------------------------------------------------------------------------ data
    def _prepared(self, batch: Any) -> Batch:
        """Return inputs as the estimator takes them, and targets. Raises `LearnerFailed` for an unknown label."""
        x, y = _pair(batch)
        x = Pipeline(self._steps).transform(x) if self._steps else x
        if not hasattr(x, "tocsr"):
            x = np.asarray(x, np.float64).reshape(len(y), -1)
        if self._classes is not None and (unknown := _unknown(y, self._classes)):
            raise LearnerFailed(_unknown_text(unknown, self._classes), code="learner.classes", hint=_DECLARE)
        return x, y

    def _check_labels(self, source: ArraySource | None) -> None:
        """Raise `InvalidJob` for a label that is not a class, where all labels are at hand."""
        labels = None if source is None else source.arrays.get("1")
        if self._classes is not None and labels is not None and (unknown := _unknown(labels, self._classes)):
            raise InvalidJob(_unknown_text(unknown, self._classes), code="learner.classes", hint=_DECLARE)


_DECLARE = "declare every label that any node may have: classes=[…], the same on every node"


def _pair(batch: Any) -> tuple[Any, Array]:
    if not isinstance(batch, tuple) or len(batch) != 2:
        raise InvalidJob(
            "an estimator is trained on inputs and targets", code="learner.data", hint="give (x, y), or such examples"
        )
    return batch[0], np.asarray(batch[1])


def _agreed(estimator: Estimator, classes: Sequence[Any] | None) -> Array | None:
    """Return the classes in the order of scikit-learn. Raises `InvalidJob` where they are missing, or make no sense."""
    name = type(estimator).__name__
    if not is_classifier(estimator):
        if classes is not None:
            raise InvalidJob(f"{name} knows no classes", code="learner.classes", hint="leave classes out")
        return None
    if not hasattr(estimator, "partial_fit") and name != "LogisticRegression":
        raise not_averaged(estimator)
    if classes is None or len(set(classes)) < 2:
        raise InvalidJob(f"{name} needs at least two classes", code="learner.classes", hint=_DECLARE)
    return np.unique(np.asarray(classes))


def _unknown(labels: Array, classes: Array) -> list[Any]:
    found: list[Any] = np.unique(labels[~np.isin(labels, classes)]).tolist()
    return found


def _unknown_text(unknown: list[Any], classes: Array) -> str:
    return f"the data have the label {unknown[0]!r}, which is none of the classes {classes.tolist()}"


def _named_classes(classes: Array) -> str:
    """Return the name of an empty tensor: models of other classes have another layout, and are refused by it."""
    shown = ", ".join(map(str, classes.tolist()))
    if len(shown) > LABELS_SHOWN:
        shown = f"{len(classes)}, {hashlib.sha256(shown.encode()).hexdigest()}"
    return f"classes: {shown}"


def _check_fitted(steps: Sequence[tuple[str, Estimator]]) -> None:
    """Raise `InvalidJob`, by name, for a step that would have to be fitted."""
    for name, step in steps:
        if step is None or isinstance(step, str):  # "passthrough"
            continue
        try:
            check_is_fitted(step)
        except NotFittedError as error:
            kind = type(step).__name__
            raise InvalidJob(
                f"step {name!r} of the pipeline, a {kind}, is not fitted; each node would fit another one to its data",
                code=CODE,
                hint="fit it before, on data that every node has, or set its numbers: the same on every node",
            ) from error


def _fitted_arrays(steps: Sequence[tuple[str, Estimator]]) -> dict[str, Array]:
    """Return what the steps were fitted to, in arrays of numbers: the base model, which nodes hold alike."""
    return {
        f"{name}.{key}": np.ascontiguousarray(value, np.float64)
        for name, step in steps
        for key, value in getattr(step, "__dict__", {}).items()
        if key.endswith("_") and isinstance(value, np.ndarray) and value.dtype.kind in "fiub"
    }
