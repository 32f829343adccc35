"""A learner where the user has made another device the default. "meta" stands in for a card: it holds no numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.model.tree import digest
from shoal.learn import TorchLearner
from shoal.learn.seeds import seeded_to_build

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Make what names no device lie on the meta device."""
    before = torch.get_default_device()
    torch.set_default_device("meta")
    yield
    torch.set_default_device(before)


def learner(train: object = (X, Y)) -> TorchLearner:
    return TorchLearner(lambda: nn.Linear(3, 2), train, (X, Y), device="cpu")


def result() -> str:
    job = {"name": "j", "rounds": 2, "algorithm": {"name": "fedavg", "batch_size": 8}}
    learners = [learner(), learner(TensorDataset(X, Y)), learner((X.numpy(), Y.numpy()))]
    return digest(shoal.simulate(job, learners, progress=False).model)


def test_the_default_device_changes_nothing(request: pytest.FixtureRequest) -> None:
    expected = result()
    request.getfixturevalue("elsewhere")
    assert result() == expected


@pytest.mark.usefixtures("elsewhere")
def test_gradients_and_many_alike_learners_do_not_mind_either() -> None:
    one = learner()
    one.init(3)
    assert one.gradient(TrainConfig(batch_size=8, lr=0.1))[0].weight == 24
    assert one.evaluate()["eval/examples"] == 24


@pytest.mark.parametrize("is_used", [False, True])
def test_a_module_is_built_without_opening_a_card(is_used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card is seeded at its first use; the state of one in use is kept as well."""
    seeds: list[int] = []
    kept: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_used)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    monkeypatch.setattr(torch.cuda, "get_rng_state", kept.append)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
    with seeded_to_build(7):
        module = nn.Linear(2, 2)
    assert module.weight.device.type == "cpu"
    assert seeds == [7]
    assert len(kept) == (2 if is_used else 0)
