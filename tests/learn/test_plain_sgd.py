"""Algorithms of plain SGD refuse learners whose local steps are others, before anything is trained."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.core.algorithm.capability import capability_error
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.learn import TorchLearner
from shoal.plugins import algorithms

SGD, Adam = torch.optim.SGD, torch.optim.Adam

PLAIN = [SGD, partial(SGD, foreach=True), lambda p, lr: SGD(p, lr, momentum=0.0, dampening=0.5)]
OTHERS: list[tuple[Any, str]] = [
    (Adam, "Adam"),
    (torch.optim.AdamW, "AdamW"),
    (partial(SGD, momentum=0.9), "SGD(momentum=0.9)"),
    (partial(SGD, momentum=0.9, nesterov=True), "SGD(momentum=0.9, nesterov=True)"),
    (partial(SGD, weight_decay=0.01), "SGD(weight_decay=0.01)"),
    (partial(SGD, maximize=True), "SGD(maximize=True)"),
    (lambda p, lr: SGD([{"params": p[:1], "momentum": 0.5}, {"params": p[1:]}], lr), "SGD(momentum=0.5)"),
    (type("Mine", (SGD,), {}), "Mine"),
]
NEEDS = {"downpour", "scaffold"}


class Watched(TorchLearner):
    """Counts its trainings."""

    trainings = 0

    def train(self, config: TrainConfig, **more: Any) -> Any:
        Watched.trainings += 1
        return super().train(config, **more)


def learner(optimizer: Any = SGD) -> TorchLearner:
    x, y = torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)
    return Watched(lambda: nn.Linear(4, 2), (x, y), optimizer=optimizer, device="cpu")


def job(name: str) -> dict[str, Any]:
    return {"name": "a", "rounds": 1, "algorithm": name}


@pytest.mark.parametrize("optimizer", PLAIN)
def test_plain_sgd_is_taken(optimizer: Any) -> None:
    assert learner(optimizer).other_optimizer == ""
    for name in NEEDS:
        assert shoal.simulate(job(name), [learner(optimizer)], progress=False).state == "done"


@pytest.mark.parametrize(("optimizer", "words"), OTHERS, ids=[words for _, words in OTHERS])
@pytest.mark.parametrize("name", sorted(NEEDS))
def test_another_optimizer_is_refused_by_name_before_it_trains(name: str, optimizer: Any, words: str) -> None:
    before = Watched.trainings
    with pytest.raises(InvalidJob) as refused:
        shoal.simulate(job(name), [learner(), learner(optimizer)], progress=False)
    assert refused.value.code == "learner.capability"
    assert f"node-1: {name} is made for local steps of plain SGD" in refused.value.message
    assert refused.value.message.endswith(f"the optimizer of Watched is {words}")
    assert "torch.optim.SGD without momentum and weight decay" in refused.value.hint
    assert Watched.trainings == before


def test_all_other_algorithms_take_any_optimizer() -> None:
    """FedProx and ADMM solve a local problem, by any solver (Li et al. 2020, Algorithm 2; Boyd et al. 2011, 4.3)."""
    trees = {name for name, kind in algorithms().items() if "trees" in kind().required_capabilities}
    refusing = {name for name, kind in algorithms().items() if capability_error(kind(), learner(Adam)) is not None}
    assert refusing - trees == NEEDS


def test_a_learner_of_ones_own_says_that_it_has_another_optimizer() -> None:
    one = type("Own", (Watched,), {"other_optimizer": "Lion"})
    x, y = torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)
    with pytest.raises(InvalidJob, match="the optimizer of Own is Lion"):
        shoal.simulate(job("scaffold"), [one(lambda: nn.Linear(4, 2), (x, y), device="cpu")], progress=False)


def test_a_function_that_makes_no_optimizer_is_told_of_as_the_users() -> None:
    def broken(parameters: Any, lr: float) -> Any:
        raise ValueError("no such rate")

    with pytest.raises(LearnerFailed, match=r"making the optimizer failed .*no such rate"):
        _ = learner(broken).other_optimizer


def test_the_optimizer_is_made_for_the_answer_once() -> None:
    made: list[float] = []

    def counted(parameters: Any, lr: float) -> torch.optim.Optimizer:
        made.append(lr)
        return SGD(parameters, lr)

    one = learner(counted)
    for name in [*NEEDS, *NEEDS]:
        assert capability_error(algorithms()[name](), one) is None
    assert len(made) == 1
