"""Stacked models have the buffers that each would have alone: statistics, counters, and constants."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import LearnerFailed
from shoal.learn import TorchConfig, TorchLearner, models
from shoal.learn.stacked.stacked_training import train_stacked, why_not
from tests.learn.stacked_learners import LENGTHS, assert_alone, equal_parts, ragged

TWO_PASSES = TrainConfig(epochs=2, batch_size=8, lr=0.02)
MERGED = [10, 10, 10, 10, 13, 13, 13, 13, 20, 7, 7, 7, 7, 5]


class Counting(nn.Module):
    """A model with statistics that it replaces, or changes in place, and that do not change its output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.inner = nn.Module()
        self.inner.register_buffer("replaced", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(64))
        self.register_buffer("scale", torch.full((1,), 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.inner.replaced = self.inner.replaced + len(x)
        self.mean += x.mean(0)
        return self.linear(x) * self.scale


@pytest.mark.parametrize("model", [models.bn, Counting])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01)])
def test_each_learner_has_its_own_statistics(model: Any, optimizer: Any) -> None:
    lengths = MERGED if model is models.bn else LENGTHS
    alone = assert_alone(ragged(lengths, model=model, optimizer=optimizer), TWO_PASSES)
    assert 0.0 in alone
    assert max(alone) > 0


def test_the_count_of_batches_is_exact() -> None:
    learners = ragged(MERGED, model=models.bn)
    base = learners[0].init(0)
    made = train_stacked(learners, base, [TWO_PASSES] * len(learners))
    for learner, one in zip(learners, made, strict=True):
        learner.load(base)
        learner.train(TWO_PASSES)
        assert one.model["1.num_batches_tracked"] == learner.model()["1.num_batches_tracked"] > 0


def test_layers_without_statistics() -> None:
    def normalized() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 16), nn.LayerNorm(16), nn.GroupNorm(4, 16), nn.ReLU(), nn.Linear(16, 10))

    assert_alone(ragged(LENGTHS, model=normalized), TWO_PASSES)


class Remembering(nn.Module):
    """A model with a buffer that stays on the node, and that it changes in a given way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.linear, self.way = nn.Linear(64, 10), way
        self.register_buffer("memory", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "in place":
            self.memory += 1
        elif self.way == "replaced":
            self.memory = x.mean().reshape(1)
        return self.linear(x)


@pytest.mark.parametrize("way", ["in place", "replaced"])
def test_a_buffer_that_stays_must_not_change(way: str) -> None:
    learners = equal_parts(4, model=partial(Remembering, way))
    base = learners[0].init(0)
    with pytest.raises(LearnerFailed, match=r"training changes the buffer memory|mutate a captured Tensor"):
        train_stacked(learners, base, [TWO_PASSES] * 4)
    assert np.array_equal(learners[0].module.get_buffer("memory"), [0.0])
    assert train_stacked(equal_parts(4, model=partial(Remembering, "")), base, [TWO_PASSES] * 4)


class Annealing(nn.Linear):
    """A model whose output depends on the number of its batches."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.batches = 0

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        return super().forward(x) / self.batches


def test_an_attribute_must_not_change() -> None:
    learners = equal_parts(4, model=Annealing)
    base = learners[0].init(0)
    with pytest.raises(LearnerFailed, match="training changes the attribute batches, which is not exchanged"):
        train_stacked(learners, base, [TWO_PASSES] * 4)
    assert learners[0].module.batches == 0


def test_buffers_that_stay_must_be_alike() -> None:
    one, two = equal_parts(2, model=Counting)
    assert why_not([one, two]) == ""
    two.module.get_buffer("scale").fill_(2.0)
    assert why_not([one, two]) == "their buffers differ"


class Growing(nn.Module):
    """A model that changes the shape of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, x.mean().reshape(1)])
        return self.linear(x)


def test_a_buffer_keeps_its_shape() -> None:
    learners = equal_parts(4, model=Growing)
    with pytest.raises(LearnerFailed, match="type or shape of seen"):
        train_stacked(learners, learners[0].init(0), [TWO_PASSES] * 4)


def test_the_norms_of_a_frozen_part_stay() -> None:
    def half_frozen() -> nn.Module:
        module = models.bn()
        module[0].requires_grad_(False)
        module[1].requires_grad_(False)
        return module

    assert_alone(ragged(LENGTHS, model=half_frozen), TWO_PASSES)


def test_local_norms_are_not_stacked() -> None:
    """They would be of a node, and a stack has only what is exchanged."""
    local: list[TorchLearner] = equal_parts(2, models.bn, config=TorchConfig(batch_norm="local"))
    assert why_not(local) == "some of the model's weights stay on the node"
