"""A correction as data: the arithmetic of its call, the mean that it keeps, and its count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm.capability import train_corrected
from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import TrainConfig, Trained, no_progress
from shoal.core.errors import InvalidPayload, LearnerFailed, Refused
from shoal.core.model.tree import Tree, digest
from tests.algorithms.softmax import Softmax, unbalanced

SIZE = 1000


def drawn(seed: int, size: int = SIZE) -> Tree:
    return Tree.of({"w": np.random.default_rng(seed).normal(size=size).astype(np.float32)})


def wide(tree: Tree) -> Any:
    return tree["w"].astype(np.float64)


def test_it_is_a_linear_map_rounded_once() -> None:
    weights, gradient, offset, anchor = (drawn(seed) for seed in range(4))
    both = Correction(offset=offset, pull=0.3, anchor=anchor)(weights, gradient)
    exact = 0.3 * (wide(weights) - wide(anchor)) + wide(gradient) + wide(offset)
    assert np.array_equal(both["w"], exact.astype(np.float32))
    pulled = Correction(pull=0.3, anchor=anchor)(weights, gradient)
    exact = 0.3 * (wide(weights) - wide(anchor)) + wide(gradient)
    assert np.array_equal(pulled["w"], exact.astype(np.float32))
    assert np.array_equal(Correction(offset=offset)(weights, gradient)["w"], gradient["w"] + offset["w"])
    assert digest(Correction()(weights, gradient)) == digest(gradient)


def test_trees_of_another_layout_are_refused() -> None:
    weights, other = drawn(0), drawn(1, 3)
    for wrong in (Correction(offset=other), Correction(offset=other, pull=0.1, anchor=weights)):
        with pytest.raises(InvalidPayload, match="w is F32"):
            wrong(weights, weights)


def test_it_keeps_the_mean_of_the_gradients_before_their_correction() -> None:
    """By calls and by the means of several steps alike."""
    gradients = [drawn(seed) for seed in range(5)]
    correction = Correction(offset=drawn(9), averages=True)
    for gradient in gradients[:2]:
        correction(drawn(8), gradient)
    last = Tree.of({"w": np.mean([wide(one) for one in gradients[2:]], axis=0).astype(np.float32)})
    correction.count(3, last)
    assert correction.steps == 5
    mean = correction.take_mean()
    assert mean is not None
    np.testing.assert_allclose(mean["w"], np.mean([wide(one) for one in gradients], axis=0), rtol=1e-6, atol=1e-7)
    assert correction.take_mean() is None


def test_a_mean_that_is_missing_or_not_finite_is_refused() -> None:
    correction = Correction(averages=True)
    correction.count(0)
    assert correction.take_mean() is None
    with pytest.raises(LearnerFailed, match="train counts steps without the mean of their gradients"):
        correction.count(2)
    with pytest.raises(Refused, match="a float64 sum holds magnitudes"):
        correction.count(1, Tree.of({"w": np.float32([np.nan])}))


class Counting(Softmax):
    """Corrects nothing here, and says that it has corrected as many steps as `given` says."""

    given = 0

    def train(self, config: TrainConfig, *, correct: Any = None, **more: Any) -> Trained:
        correct.count(self.given)
        return super().train(config, **more)


def test_a_learner_that_counts_its_steps_has_applied_the_correction() -> None:
    learner = unbalanced(kind=Counting)[0]
    learner.init(0)
    with pytest.raises(LearnerFailed, match="Counting declares applies_corrections, but its train has not called"):
        train_corrected(learner, TrainConfig(), Correction(pull=0.1, anchor=learner.model()), no_progress)
    learner.given = 2
    assert train_corrected(learner, TrainConfig(), Correction(pull=0.1, anchor=learner.model()), no_progress).weight


class Listing(Softmax):
    """Passes a list to the correction."""

    def train(self, config: TrainConfig, *, correct: Any = None, **more: Any) -> Trained:
        correct(self.model(), [1.0])
        return super().train(config, **more)


def test_an_argument_that_is_no_tree_is_refused_with_the_learners_name() -> None:
    learner = unbalanced(kind=Listing)[0]
    learner.init(0)
    with pytest.raises(LearnerFailed, match=r"correct of Listing\.train gives list, not arrays by name"):
        train_corrected(learner, TrainConfig(), Correction(), no_progress)
