"""Tables as learners of boosted trees. Needs numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.core.algorithm.learner import Correct, ExtraLoss, Progress, TrainConfig, Trained, no_progress
from shoal.core.boosting.ensemble import Ensemble, Wide
from shoal.core.boosting.sketch import make_sketch
from shoal.core.boosting.splits import make_histogram
from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Metrics
from shoal.learn.data.kinds import is_empty
from shoal.learn.trees.objective import exact_derivatives, objective_of
from shoal.learn.trees.rows import Rows, numbers, refuse

LIMITS = {"trees": (1, 10_000), "depth": (1, 12), "bins": (2, 4096)}


class TreesLearner:
    """Boosted trees on a table `(x, y)`; NaN is a missing value. `test`: held-out rows for this node's evaluation.

    `trees`, `depth`, `bins` and `objective` are the form of the model, and the same on every node.
    """

    gives_gradients = False

    def __init__(
        self,
        train: tuple[Any, Any],
        test: tuple[Any, Any] | None = None,
        *,
        trees: int = 50,
        depth: int = 6,
        bins: int = 64,
        objective: str = "binary:logistic",
    ) -> None:
        for name, given in {"trees": trees, "depth": depth, "bins": bins}.items():
            least, most = LIMITS[name]
            if not least <= given <= most:
                raise InvalidJob(f"TreesLearner: {name} is {given}, but must be in [{least}, {most}]")
        self._rows = Rows(train, objective, "training")
        self._test = None if test is None or is_empty(test) else Rows(test, objective, "test")
        self._empty = Ensemble.empty(objective, self._rows.x.shape[1], bins, trees, depth)
        if self._test is not None and self._test.x.shape[1] != self._empty.features:
            refuse(f"{self._empty.features} features in the training data, {self._test.x.shape[1]} in the test data")
        self._ensemble, self.layout = self._empty, self._empty.to_model().layout

    @property
    def examples(self) -> int:
        """The number of rows."""
        return len(self._rows.y)

    def init(self, seed: int) -> Tree:
        """Return an empty ensemble."""
        self._ensemble = self._empty
        return self.model()

    def load(self, model: Tree) -> None:
        """Take an ensemble. Raises `InvalidPayload` for one of another form."""
        if model.layout != self.layout:
            raise InvalidPayload(
                f"the model is {shown(model)}; this node's is {shown(self._empty.to_model())}",
                code="payload.layout",
                hint="give every node the same columns, trees, depth, bins and objective",
            )
        self._ensemble = Ensemble.of(model)

    def model(self) -> Tree:
        """Return the present ensemble."""
        return self._ensemble.to_model()

    def predict(self, inputs: Any) -> Wide:
        """Return the predictions of the present ensemble: probabilities of class 1, or values."""
        return predict(self.model(), inputs)

    def sketch(self) -> tuple[Trained, Tree]:
        """Return the quantile sketch of the rows."""
        rows = self._rows
        sketch = make_sketch(rows.x, rows.y, rows.objective.scale(rows.y), self._empty.bins)
        return Trained(float(self.examples)), sketch

    def histogram(self, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        """Return the sums of the next level to split, and the loss by the complete decision trees."""
        rows, ensemble = self._rows, self._ensemble
        margins = rows.margins(ensemble)
        progress(0.5)
        gradients = exact_derivatives(rows.objective, margins, rows.y, float(ensemble.scale[0]))
        histogram = make_histogram(ensemble, rows.binned, ensemble.places(rows.binned, ensemble.grown), gradients)
        progress(1.0)
        return Trained(float(self.examples), {"train/loss": rows.objective.loss(margins, rows.y)}), histogram

    def evaluate(self) -> Metrics:
        """Measure the ensemble, with the decision tree in progress, on the test rows."""
        if self._test is None:
            return {}
        margins = self._test.margins(self._ensemble)
        for tree in range(self._ensemble.grown, self._ensemble.planted):
            margins = margins + self._ensemble.outputs(self._test.binned, tree)
        found = {"loss": self._test.objective.loss(margins, self._test.y)}
        found |= self._test.objective.measure(margins, self._test.y)
        return {"eval/examples": float(len(margins)), **{f"eval/{name}": value for name, value in found.items()}}

    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        """Raise `LearnerFailed`: decision trees have no weights to train."""
        raise _no_gradients()

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        """Raise `LearnerFailed`: decision trees have no weights."""
        raise _no_gradients()


def predict(model: Tree, x: Any) -> Wide:
    """Return the predictions of a trained ensemble: probabilities of class 1, or values."""
    ensemble = Ensemble.of(model)
    objective = objective_of(ensemble.objective)
    table = numbers(x, np.float32, "given")
    if table.ndim != 2 or table.shape[1] != ensemble.features:
        refuse(f"the data are of shape {table.shape}; the model knows {ensemble.features} features")
    binned = ensemble.binned(table)
    margins = np.full(len(table), objective.margin(float(ensemble.base_score[0])))
    for tree in range(ensemble.planted):
        margins += ensemble.outputs(binned, tree)
    return objective.predict(margins)


def shown(model: Tree) -> str:
    """Return the form of an ensemble for people."""
    one = Ensemble.of(model)
    return f"{one.trees} trees of depth {one.depth} on {one.features} features in {one.bins} bins, {one.objective}"


def _no_gradients() -> LearnerFailed:
    text = "TreesLearner has decision trees, and no weights whose gradient could be taken"
    return LearnerFailed(text, code="learner.trees", hint="choose the algorithm boosted_trees, and no measure")
