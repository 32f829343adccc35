"""Learners to be trained at once, and the comparison of that with training each alone."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from shoal.core.algorithm.learner import TrainConfig
from shoal.learn import TorchLearner, digits, models
from shoal.learn.stacked.stacked_training import train_stacked

LENGTHS = [17, 1, 8, 40, 3, 12, 16, 8, 9, 5, 7, 33, 24, 2, 3]


def equal_parts(count: int = 3, model=models.mlp, **more) -> list[TorchLearner]:
    x, y = digits.digits()
    return [
        TorchLearner(model, (x[k * 50 : k * 50 + 50], y[k * 50 : k * 50 + 50]), device="cpu", **more)
        for k in range(count)
    ]


def ragged(lengths: list[int], model=models.mlp, **more) -> list[TorchLearner]:
    x, y = digits.digits()
    places = pairwise(np.cumsum([0, *lengths]))
    return [TorchLearner(model, (x[a:b], y[a:b]), device="cpu", **more) for a, b in places]


def assert_alone(learners: list[TorchLearner], budget: TrainConfig) -> list[float]:
    """Assert that training at once gives what each gives alone; return the fractions of steps that were made alone."""
    base, fractions = learners[0].init(0), [0.0]
    budgets = [replace(budget, seed=seed) for seed in range(len(learners))]
    together = train_stacked(learners, base, budgets, fractions.append)
    assert fractions == sorted(set(fractions))
    assert fractions[-1] == (1.0 if budget.epochs else 0.0)
    for learner, one, (done, tree, _) in zip(learners, budgets, together, strict=True):
        learner.load(base)
        alone = learner.train(one)
        assert done.weight == alone.weight
        assert done.metrics == pytest.approx(alone.metrics, rel=1e-5)
        assert all(np.allclose(tree[name], learner.model()[name], rtol=1e-5, atol=1e-5) for name in tree)
    return [result.alone for result in together]
