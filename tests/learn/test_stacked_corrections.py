"""Gradients of stacked learners are corrected as each learner's would be alone."""

from functools import partial
from typing import Any

import pytest
import torch

from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import Tree, scale, zeros
from shoal.learn import TorchConfig, models
from shoal.learn.stacked.stacked_corrections import form_of, is_same
from shoal.learn.stacked.stacked_training import train_stacked
from tests.learn.stacked_learners import LENGTHS, assert_alone, equal_parts, ragged
from tests.learn.test_stacked_optimizer import HalfUsed

TWO_PASSES = TrainConfig(epochs=2, batch_size=8, lr=0.02)


def near_one_anchor(base: Tree, number: int) -> Correction:
    return Correction(pull=0.5, anchor=base)


def near_own_anchor(base: Tree, number: int) -> Correction:
    return Correction(pull=0.5, anchor=scale(base, 1 + number / 10))


def with_own_offset(base: Tree, number: int) -> Correction:
    return Correction(offset=scale(base, number / 10), averages=True)


def with_all(base: Tree, number: int) -> Correction:
    return Correction(offset=scale(base, 0.1), pull=0.2, anchor=scale(base, number / 10), averages=True)


ALL = [near_one_anchor, near_own_anchor, with_own_offset, with_all]


@pytest.mark.parametrize("correction", ALL)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"optimizer": partial(torch.optim.SGD, momentum=0.9)},
        {"config": TorchConfig(clip_norm=0.3)},
        {"model": HalfUsed, "optimizer": partial(torch.optim.SGD, weight_decay=0.5)},
    ],
    ids=["plain", "momentum", "clipped", "decay of unused weights"],
)
def test_each_gradient_is_corrected_as_alone(correction: Any, more: dict[str, Any]) -> None:
    assert max(assert_alone(ragged(LENGTHS, **more), TWO_PASSES, correction)) > 0


def test_no_step_has_no_mean() -> None:
    assert_alone(equal_parts(4), TrainConfig(epochs=0), with_own_offset)


def test_a_correction_of_another_model_is_refused() -> None:
    learners, other = equal_parts(2), equal_parts(1, models.cnn)[0].init(0)
    given = [Correction(offset=zeros(other.layout))] * 2
    with pytest.raises(InvalidPayload):
        train_stacked(learners, learners[0].init(0), [TWO_PASSES] * 2, corrections=given)


def test_corrections_are_the_same_by_their_numbers() -> None:
    base = equal_parts(1)[0].init(0)
    for correction in ALL:
        assert is_same(correction(base, 3), correction(base, 3))
        assert not is_same(None, correction(base, 3))
        assert not is_same(correction(base, 3), None)
    assert is_same(None, None)
    assert not is_same(near_own_anchor(base, 1), near_own_anchor(base, 2))
    assert not is_same(with_own_offset(base, 1), with_own_offset(base, 2))
    assert not is_same(lambda weights, gradient: gradient, near_one_anchor(base, 0))
    assert not is_same(Correction(pull=0.4, anchor=base), near_one_anchor(base, 0))
    assert len({form_of(correction(base, 0)) for correction in ALL}) == 3
