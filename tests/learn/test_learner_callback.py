"""Callbacks of a node's tasks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.core.algorithm.learner import TrainConfig, Trained
from shoal.core.errors import LearnerFailed
from shoal.core.model.tree import digest
from shoal.learn import LearnerCallback, TorchConfig, TorchLearner
from tests.loop.loops import network, parts

TASK = TrainConfig(epochs=2, batch_size=16, lr=0.1, seed=5)


class Recording(LearnerCallback):
    """A callback that records what it sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def task_started(self, module: nn.Module, config: TrainConfig) -> None:
        self.first = module.get_parameter("0.weight").detach().clone()
        self.seen.append(("starts", config.lr, module.training))

    def batch_trained(self, number: int, loss: float) -> None:
        self.seen.append((number, loss))

    def task_ended(self, module: nn.Module, config: TrainConfig, trained: Trained) -> None:
        self.last = module.get_parameter("0.weight").detach().clone()
        self.seen.append(("ends", trained.metrics["train/loss"]))


def learner(*callbacks: LearnerCallback) -> TorchLearner:
    return TorchLearner(network, parts()[0], device="cpu", config=TorchConfig(callbacks=callbacks))


def test_a_callback_sees_the_task_and_the_loss_of_each_batch() -> None:
    seen = Recording()
    one = learner(seen)
    start = one.init(3)
    one.train(TASK)
    assert seen.seen[0] == ("starts", 0.1, True)
    assert torch.equal(seen.first, torch.tensor(start["0.weight"]))
    assert torch.equal(seen.last, torch.tensor(one.model()["0.weight"]))
    losses = [loss for kind, loss in seen.seen[1:-1]]
    assert [kind for kind, *_ in seen.seen] == ["starts", *range(6), "ends"]
    weights = [16, 16, 18] * 2  # of 50 examples: BatchNorm gets no batch of two
    mean = sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / 100
    assert seen.seen[-1] == ("ends", pytest.approx(mean))


def test_callbacks_change_no_bit() -> None:
    digests = []
    for one in (learner(), learner(Recording())):
        one.init(3)
        one.train(TASK)
        digests.append(digest(one.model()))
    assert digests[0] == digests[1]


def test_each_node_of_a_simulation_tells_its_own() -> None:
    seen = [Recording() for _ in range(9)]
    job = {"name": "told", "rounds": 2, "algorithm": {"name": "fedavg", "batch_size": 16}}
    result = shoal.simulate(job, [learner(one) for one in seen])
    for one in seen:
        assert [kind for kind, *_ in one.seen].count("starts") == 2
        assert [kind for kind, *_ in one.seen].count("ends") == 2
    assert "callbacks" in result.training


class Broken(LearnerCallback):
    def task_started(self, module: nn.Module, config: TrainConfig) -> None:
        raise KeyError("lamp")


def test_an_error_is_named_and_only_that_node_is_left_out() -> None:
    job = {"name": "told", "rounds": 2, "algorithm": {"name": "fedavg", "batch_size": 16}}
    result = shoal.simulate(job, [learner(), learner(Broken()), learner()])
    assert (result.state, result.uncounted) == ("done", ("node-1",))
    assert any(
        "test_learner_callback.py, line" in event.text and "KeyError: 'lamp'" in event.text for event in result.events
    )
    with pytest.raises(LearnerFailed, match="KeyError: 'lamp'"):
        shoal.simulate(job, [learner(Broken())])
