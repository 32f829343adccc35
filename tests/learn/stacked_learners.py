"""Learners to be trained at once, and the comparison of that with training each alone."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.model.tree import Tree
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


def no_correction(base: Tree, number: int) -> Correction | None:
    return None


def assert_alone(
    learners: list[TorchLearner],
    config: TrainConfig,
    correction: Callable[[Tree, int], Correction | None] = no_correction,
) -> list[float]:
    """Assert that training at once gives what each gives alone; return the fractions of steps that were made alone.

    `correction` makes the correction of the learner with a number, if there is one.
    """
    base, fractions = learners[0].init(0), [0.0]
    configs = [replace(config, seed=seed) for seed in range(len(learners))]
    given = [one for number in range(len(learners)) if (one := correction(base, number)) is not None]
    together = train_stacked(learners, base, configs, fractions.append, given)
    assert fractions == sorted(set(fractions))
    assert fractions[-1] == (1.0 if config.epochs else 0.0)
    for number, (learner, one, made) in enumerate(zip(learners, configs, together, strict=True)):
        learner.load(base)
        own = correction(base, number)
        alone = learner.train(one, correct=own)
        assert made.trained.weight == alone.weight
        assert made.trained.metrics == pytest.approx(alone.metrics, rel=1e-5)
        assert_close(made.model, learner.model())
        if own is not None:
            assert made.steps == own.steps
            assert_close(made.mean, own.take_mean())
    return [result.alone for result in together]


def assert_close(one: Tree | None, two: Tree | None) -> None:
    assert (one is None) == (two is None)
    for name in one or ():
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=1e-5)
