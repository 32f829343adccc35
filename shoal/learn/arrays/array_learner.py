"""Functions over arrays of numpy, JAX, MLX or another library as a `Learner`. Imports numpy alone.

    def gradient(parameters, batch):                     # (loss, gradient), a mean over the batch
        x, y = batch
        error = x @ parameters["w"] - y
        return (error**2).mean(), {"w": 2 * x.T @ error / len(y)}

    learner = ArrayLearner(lambda seed: {"w": np.zeros(64, np.float32)}, (x, y), gradient=gradient)

Batches, seeds, positions in streams and weights are those of `TorchLearner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.algorithm.learner import Correct, ExtraLoss, Progress, TrainConfig, Trained, no_progress
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import Layout, Tree, add, same_layout, zeros
from shoal.core.model.tree_steps import towards
from shoal.core.protocol.message import Metrics
from shoal.core.protocol.metrics import EVAL_WEIGHT
from shoal.learn.arrays.array_batches import ArraySource, generator_of, size_of
from shoal.learn.arrays.pytree import Convert, ParameterForm, Pytree, mapped
from shoal.learn.data.kinds import is_empty
from shoal.learn.data.passes import training_batches
from shoal.learn.default_generators import seeded_generators
from shoal.learn.user_errors import user_code

EVAL_BATCH_SIZE = 1024

Gradient = Callable[[Pytree, Any], tuple[Any, Pytree]]
"""`(parameters, batch) -> (loss, gradient)`, means over the batch."""

Loop = Callable[[Pytree, Iterator[Any], TrainConfig], Any]
"""`(parameters, batches, config) -> parameters` or `(parameters, metrics)`."""

Evaluate = Callable[[Pytree, Any], Mapping[str, Any]]
"""`(parameters, batch) -> metrics`, means over the batch."""


@dataclass(frozen=True)
class ArrayConfig:
    """Settings of an `ArrayLearner`: kinds and types of the parameters."""

    statistics: Sequence[str] = ()
    """Names of float arrays that training measures and does not optimize, such as running means and variances, or
    patterns of names: `*.running_mean`. They are averaged and never stepped. Counters of whole numbers need no name."""
    convert: Convert | None = None
    """From a numpy array to yours; None: found by the type of each parameter."""

    def __post_init__(self) -> None:
        if isinstance(self.statistics, str):
            raise InvalidJob("statistics is a text", code="learner.model", hint="give a list of names")


class ArrayLearner:
    """A `Learner` for parameters in nested dictionaries, lists and tuples of arrays.

    init        (seed) -> parameters
    train       arrays (x, y) or a dictionary of arrays, all of one length, or a list of examples; None: the loop has
                its own
    test        data of the same kind for evaluation; None: this node does not evaluate
    gradient    (parameters, batch) -> (loss, gradient), means over the batch; shoal makes the steps of SGD. The
                gradient of a statistic is its new value
    loop        (parameters, batches, config) -> parameters or (parameters, metrics): a training loop of your own
    evaluate    (parameters, batch) -> metrics, means over the batch; default: the loss of `gradient`
    examples    the number of training examples, where `train` is None
    config      see `ArrayConfig`

    Raises `InvalidJob` for unusable data or parameters, and `LearnerFailed` for errors in the user's code. Parameters
    and batches are given in the array type of `init`'s parameters; numpy arrays given to `gradient` and `evaluate` are
    read-only.
    """

    def __init__(
        self,
        init: Callable[[int], Pytree],
        train: Any = None,
        test: Any = None,
        *,
        gradient: Gradient | None = None,
        loop: Loop | None = None,
        evaluate: Evaluate | None = None,
        examples: int | None = None,
        config: ArrayConfig = ArrayConfig(),
    ) -> None:
        self._init, self._gradient, self._loop, self._evaluate = init, gradient, loop, evaluate
        self.applies_corrections, self.gives_gradients = loop is None, gradient is not None
        if gradient is None and loop is None:
            raise InvalidJob("nothing says how to train", code="learner.model", hint="give gradient=… or loop=…")
        if train is None and (loop is None or not examples):
            raise InvalidJob("there are no training data", code="learner.data", hint="give train, or loop and examples")
        with user_code("reading the data"):
            self.train_data = None if train is None else ArraySource(train)
            self.test_data = None if test is None or is_empty(test) else ArraySource(test)
        self.examples = examples if self.train_data is None else self.train_data.examples
        with seeded_code("init", 0):
            start = init(0)
        self._form = ParameterForm(start, config.convert, config.statistics)
        self._weights = self._form.tree_of(start, "init")

    @property
    def layout(self) -> Layout:
        """Return names, types, shapes and kinds of the parameters."""
        return self._form.layout

    # --------------------------------------------------------------------------------------------------------- weights
    def init(self, seed: int) -> Tree:
        """Return and load new parameters of this seed."""
        with seeded_code("init", seed):
            self._weights = self._form.tree_of(self._init(seed), "init")
        return self._weights

    def load(self, model: Tree) -> None:
        """Take these parameters. Raises `InvalidPayload` when they do not fit."""
        same_layout(self.layout, model.layout)
        self._weights = Tree(model.layout, model.buffer)

    def model(self) -> Tree:
        """Return the present parameters as a tree."""
        return self._weights

    def parameters(self, model: Tree | None = None) -> Pytree:
        """Return a model, or the present one, as the user's parameters. Raises `InvalidPayload` if it does not fit."""
        if model is not None:
            same_layout(self.layout, model.layout)
        return self._form.parameters_of(self._weights if model is None else model, writable=True)

    # -------------------------------------------------------------------------------------------------------- training
    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        """Train from the present parameters: by the user's loop, or by SGD. They change when all went well."""
        if extra_loss is not None:
            raise LearnerFailed("ArrayLearner cannot be taught by another model", code="learner.capability")
        with seeded_code("training", config.seed, progress):
            counted = CountedBatches(self._batches(config, progress))
            if self._loop is not None:
                self._weights, metrics = self._looped(self._loop, counted, config, progress)
            else:
                self._weights, metrics = self._descended(counted, config, correct, progress)
        return Trained(self._weight(config, counted), metrics)

    def _batches(self, config: TrainConfig, progress: Progress) -> Iterator[tuple[Any, float]]:
        if self.train_data is None:
            return iter(())
        return training_batches(self.train_data, config, generator_of(config.seed), progress)

    def _weight(self, config: TrainConfig, counted: CountedBatches) -> float:
        """Return the number of examples; for a sequence the rate counts: a faster stream has more weight."""
        in_sequence = config.batch_index >= 0 and counted.examples
        return float(counted.examples if in_sequence else self.examples or counted.examples)

    def _looped(
        self, loop: Loop, counted: CountedBatches, config: TrainConfig, progress: Progress
    ) -> tuple[Tree, Metrics]:
        def batches() -> Iterator[Any]:
            for batch, fraction in counted:
                yield self._converted(batch)
                progress(fraction)

        result: Any = loop(self._form.parameters_of(self._weights, writable=True), batches(), config)
        metrics: Mapping[str, Any] = {}
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
        if is_pair and not self._form.has_structure(result):
            result, metrics = result
        return self._form.tree_of(result, "the loop"), {f"train/{name}": float(one) for name, one in metrics.items()}

    def _descended(
        self, counted: CountedBatches, config: TrainConfig, correct: Correct | None, progress: Progress
    ) -> tuple[Tree, Metrics]:
        weights, total = self._weights, 0.0
        for batch, fraction in counted:
            loss, gradient = self._slope(weights, batch)
            if correct is not None:
                gradient = with_values(correct(weights, gradient), gradient)
            weights = add(weights, gradient, -config.lr)
            total += loss * size_of(batch)
            progress(fraction)
        return weights, _mean("train/loss", total, counted.examples)

    def _slope(self, weights: Tree, batch: Any) -> tuple[float, Tree]:
        """Return the loss and its gradient."""
        assert self._gradient is not None
        result: Any = self._gradient(self._form.parameters_of(weights), self._converted(batch))
        if not isinstance(result, tuple) or len(result) != 2:
            raise LearnerFailed("gradient gave no pair", code="learner.model", hint="return (loss, gradient)")
        loss, gradient = result
        return float(loss), self._form.gradient_of(gradient, weights, "gradient")

    def _converted(self, batch: Any) -> Any:
        return mapped(batch, lambda _, array: self._form.convert(array))

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        """Return the mean gradient over all training data, or over `steps` batches, at the present parameters."""
        if self._gradient is None or self.train_data is None:
            raise LearnerFailed("this ArrayLearner gives no gradients", code="learner.capability", hint="give gradient")
        mean, present, total = zeros(self.layout), self._weights, 0.0
        with seeded_code("computing the gradient", config.seed, progress):
            counted = CountedBatches(self._batches(replace(config, epochs=1.0), progress))
            for batch, fraction in counted:
                loss, gradient = self._slope(present, batch)
                present = with_values(present, gradient)
                total += loss * size_of(batch)
                mean = towards(mean, mean, gradient, size_of(batch) / counted.examples)
                progress(fraction)
        trained = Trained(self._weight(config, counted), _mean("train/loss", total, counted.examples))
        return trained, with_values(mean, present)

    # ------------------------------------------------------------------------------------------------------ evaluation
    def evaluate(self) -> Metrics:
        """Return "eval/examples" and each metric as "eval/NAME", on the test data; {} without test data."""
        if self.test_data is None or (self._evaluate is None and self._gradient is None):
            return {}
        with seeded_code("evaluating", 0):
            return mean_metrics(self.test_data, self._measured)

    def _measured(self, batch: Any) -> Mapping[str, Any]:
        if self._evaluate is None:
            return {"loss": self._slope(self._weights, batch)[0]}
        return self._evaluate(self._form.parameters_of(self._weights), self._converted(batch))


def with_values(tree: Tree, newer: Tree) -> Tree:
    """Return a tree with the statistics of a newer one: they are values, for corrections and means too."""
    return add(tree, newer, 0.0) if tree.layout.statistics else tree


class CountedBatches:
    """Batches with the fraction done after each, and the number of their examples so far."""

    def __init__(self, batches: Iterator[tuple[Any, float]]) -> None:
        self._batches, self.examples = batches, 0

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        for batch, fraction in self._batches:
            self.examples += size_of(batch)
            yield batch, fraction


def mean_metrics(data: ArraySource, measure: Callable[[Any], Mapping[str, Any]]) -> Metrics:
    """Return "eval/examples", and as "eval/NAME" the mean of each number that `measure` gives for a batch."""
    totals: dict[str, float] = {}
    for batch in data.epoch(EVAL_BATCH_SIZE, None):
        for name, value in measure(batch).items():
            totals[f"eval/{name}"] = totals.get(f"eval/{name}", 0.0) + float(value) * size_of(batch)
    return {EVAL_WEIGHT: float(data.examples), **{name: total / data.examples for name, total in totals.items()}}


@contextmanager
def seeded_code(doing: str, seed: int, progress: Progress = no_progress) -> Iterator[None]:
    """Seed the default generators for the user's code, and name what it did in its errors."""
    with user_code(doing), seeded_generators(seed, progress):
        yield


def _mean(name: str, total: float, examples: int) -> Metrics:
    return {name: total / examples} if examples else {}
