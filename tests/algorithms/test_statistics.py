"""Statistics, which training measures, under every algorithm: averaged, never stepped and never extrapolated."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.algorithm.learner import Correct, ExtraLoss, Progress, TrainConfig, Trained, no_progress
from shoal.core.errors import LearnerFailed
from shoal.core.model.tree import Array, Layout, Tree
from shoal.core.protocol.message import Metrics
from shoal.plugins import algorithms
from tests.algorithms.softmax import SIZES, Softmax, unbalanced
from tests.algorithms.test_conformance import job, kind, of_weights
from tests.filters.test_filter_lists import LISTS

MEAN, VARIANCE = "norm.moving_mean", "norm.moving_variance"
REFUSING = {"lbfgs"}
"""Algorithms that refuse a model with statistics."""
AVERAGING = sorted({*of_weights()} - REFUSING)
IN_ROUNDS = {name for name in AVERAGING if "synchronous" in algorithms()[name].schedules}
"""Algorithms whose every version has one report of each node here."""
PLAIN = {"norm_factor": 0.0}


class Measuring:
    """A learner with the weights of another, and a mean and a variance that leap from task to task."""

    applies_corrections = True

    def __init__(self, inner: Softmax, number: int, least: float = 0.01) -> None:
        self.inner, self.number, self.least = inner, number, least
        self.found: list[tuple[float, float]] = []
        """Mean and variance after each training and each gradient."""
        self.now = 0.0, 1.0

    def init(self, seed: int) -> Tree:
        self.now = 0.0, 1.0
        return self._with(self.inner.init(seed), self.now)

    @property
    def layout(self) -> Layout:
        return self.model().layout

    def load(self, model: Tree) -> None:
        self.inner.load(self._without(model))
        self.now = float(model[MEAN][0]), float(model[VARIANCE][0])

    def model(self) -> Tree:
        return self._with(self.inner.model(), self.now)

    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        def inner(weights: Tree, gradient: Tree) -> Tree:
            assert correct is not None
            return self._without(correct(self._with(weights, self.now), self._with(gradient, (0.0, 0.0))))

        given = inner if correct else None
        trained = self.inner.train(config, correct=given, extra_loss=extra_loss, progress=progress)
        self.now = self._measure(config)
        return trained

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        trained, gradient = self.inner.gradient(config, progress=progress)
        return trained, self._with(gradient, self._measure(config))

    def optimizer_state(self) -> Tree:
        return self.inner.optimizer_state()

    def load_optimizer_state(self, state: Tree | None) -> None:
        self.inner.load_optimizer_state(state)

    def teach(self, teacher: Tree, weight: float) -> ExtraLoss:
        return self.inner.teach(self._without(teacher), weight)

    def evaluate(self) -> Metrics:
        return self.inner.evaluate()

    def _measure(self, config: TrainConfig) -> tuple[float, float]:
        draw = np.random.default_rng([self.number, config.seed % 2**32, len(self.found)])
        values = np.float32([draw.uniform(-50, 50), self.least * 10 ** draw.uniform(0, 4)])
        self.found.append((float(values[0]), float(values[1])))
        return self.found[-1]

    def _with(self, tree: Tree, statistics: tuple[float, float]) -> Tree:
        mean, variance = (np.full(3, value, np.float32) for value in statistics)
        arrays: dict[str, Array] = {name: tree[name] for name in tree}
        arrays |= {MEAN: mean, VARIANCE: variance}
        return Tree.of(arrays, base_model=tree.layout.base_model, statistics=[MEAN, VARIANCE])

    def _without(self, tree: Tree) -> Tree:
        arrays = {name: tree[name] for name in tree if name not in tree.layout.statistics}
        return Tree.of(arrays, base_model=tree.layout.base_model)


def three(name: str) -> list[Measuring]:
    return [Measuring(one, number) for number, one in enumerate(unbalanced(kind=kind(name)))]


def within(model: Tree, found: list[tuple[float, float]]) -> None:
    """Check that each statistic lies between the least and the greatest of those found."""
    for place, name in enumerate((MEAN, VARIANCE)):
        values = [one[place] for one in found]
        assert min(values) <= model[name].min() <= model[name].max() <= max(values), name


@pytest.mark.parametrize("name", AVERAGING)
def test_a_new_version_has_a_mean_of_the_reported_statistics(name: str) -> None:
    learners = three(name)
    model = shoal.simulate(job(name, limits=PLAIN), learners).model
    assert all(one.found for one in learners)
    if name in IN_ROUNDS:
        assert [len(one.found) for one in learners] == [4, 4, 4]
        within(model, [one.found[-1] for one in learners])
    else:
        within(model, [*chain.from_iterable(one.found for one in learners), (0.0, 1.0)])


@pytest.mark.parametrize("name", [name for name in AVERAGING if "asynchronous" in algorithms()[name].schedules])
def test_late_reports_do_not_lead_statistics_astray(name: str) -> None:
    learners = three(name)
    schedule = {"name": "buffer", "size": 1, "min_nodes": 3, "deadline_s": 200.0}
    given = job(name, rounds=12, schedule=schedule, limits=PLAIN)
    result = shoal.simulate(given, learners, slow={"node-0": 5.0, "node-2": 3.0})
    assert len(result.versions) == 13
    within(result.model, [*chain.from_iterable(one.found for one in learners), (0.0, 1.0)])


@pytest.mark.parametrize(("name", "shares"), [("fedavg", SIZES), ("fedadam", SIZES), ("scaffold", (1, 1, 1))])
def test_nodes_weigh_as_they_do_for_weights(name: str, shares: tuple[int, ...]) -> None:
    learners = three(name)
    model = shoal.simulate(job(name, limits=PLAIN), learners).model
    for place, tensor in enumerate((MEAN, VARIANCE)):
        expected = np.average([one.found[-1][place] for one in learners], weights=shares)
        assert model[tensor] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("filters", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_filters_leave_statistics_alone(name: str, filters: list[dict[str, Any]]) -> None:
    plain = shoal.simulate(job(name, limits=PLAIN), three(name)).model
    model = shoal.simulate(job(name, limits=PLAIN, filters=filters), three(name)).model
    for tensor in (MEAN, VARIANCE):
        assert model[tensor].tolist() == plain[tensor].tolist()
    assert not np.array_equal(model["w"], plain["w"])


@pytest.mark.parametrize("least", [-1.0, float("nan")])
@pytest.mark.parametrize("name", ["fedavg", "fedsgd"])
def test_a_statistic_that_cannot_be_is_refused_by_name(name: str, least: float) -> None:
    learners = [Measuring(one, number, least) for number, one in enumerate(unbalanced())]
    why = "is a variance below 0" if least < 0 else "is not finite"
    with pytest.raises(LearnerFailed, match=rf"norm\.moving_variance\[0\] {why}"):
        shoal.simulate(job(name), learners)
