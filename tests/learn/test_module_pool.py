"""Modules that learners of a simulation share, one after the other."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.model.tree import digest
from shoal.jobs.spec import parse_job
from shoal.learn import TorchLearner
from shoal.learn.training.module_pool import ModulePools, shared_modules

X, Y = torch.rand(12, 4, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3
WIDTH = 5


class Alone(TorchLearner):
    """A learner that is trained one by one."""


class Counting(nn.Module):
    """A model that counts its calls, if it is given an array for them."""

    def __init__(self, *, seen: Any = None) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.calls, self.seen = 0, seen

    def forward(self, x: Tensor) -> Tensor:
        if self.seen is not None:
            self.seen += 1
        return self.last(self.norm(x)) * (1 if self.seen is None else self.seen.item())


def wide() -> nn.Module:
    return nn.Linear(4, WIDTH)


@pytest.fixture
def made() -> Any:
    """Return a function that makes learners which share modules; it counts the calls of the model function."""
    pools, calls = ModulePools(), []

    def make(model: Callable[[], nn.Module] = Counting, **more: Any) -> TorchLearner:
        with shared_modules(pools):
            return TorchLearner(model, (X, Y), (X, Y), device="cpu", **more)

    def factory(inner: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        def counted() -> nn.Module:
            calls.append(inner)
            return inner()

        return counted

    make.factory, make.calls = factory, calls  # type: ignore[attr-defined]
    return make


def trained(learner: TorchLearner) -> tuple[Any, ...]:
    """Return everything that a learner's training and evaluation lead to."""
    before = digest(learner.model())
    result = learner.train(TrainConfig(epochs=2.0, batch_size=4, lr=0.1, seed=3))
    return before, result, digest(learner.model()), learner.evaluate()


def test_the_next_learner_finds_the_module_as_it_was_made(made: Any) -> None:
    model = made.factory(Counting)
    expected = trained(TorchLearner(Counting, (X, Y), (X, Y), device="cpu"))
    for _ in range(3):
        learner = made(model)
        learner.module.eval()
        assert trained(learner) == expected
        learner.module.zero_grad(set_to_none=False)
        del learner
    assert len(made.calls) == 1


def test_each_learner_has_a_module_of_its_own_while_it_lives(made: Any) -> None:
    model = made.factory(Counting)
    one, two = made(model), made(model)
    assert len(made.calls) == 1  # no learner needs a module before its first use
    expected, before = trained(one), digest(two.model())
    assert (trained(two), len(made.calls)) == (expected, 2)
    assert before == expected[0]


def changed_attribute(module: nn.Module) -> None:
    module.calls = 3


def changed_attribute_to_a_tensor(module: nn.Module) -> None:
    module.__dict__["calls"] = torch.ones(2)


def frozen(module: nn.Module) -> None:
    next(module.parameters()).requires_grad_(False)


def hooked(module: nn.Module) -> None:
    module.register_forward_hook(lambda *_: None)


def hooked_parameter(module: nn.Module) -> None:
    next(module.parameters()).register_hook(lambda gradient: 0 * gradient)


def resized(module: nn.Module) -> None:
    module.last = nn.Linear(4, 4)


def with_a_part(module: nn.Module) -> None:
    module.further = nn.ReLU()


@pytest.mark.parametrize(
    "change",
    [
        changed_attribute,
        changed_attribute_to_a_tensor,
        frozen,
        hooked,
        hooked_parameter,
        resized,
        with_a_part,
    ],
)
def test_a_changed_module_serves_no_other_learner(made: Any, change: Callable[[nn.Module], None]) -> None:
    expected = trained(made())
    learner = made()
    module = learner.module
    change(module)
    del learner
    following = made()
    assert following.module is not module
    assert trained(following) == expected


def test_a_module_with_an_object_of_its_own_serves_no_other_learner(made: Any) -> None:
    def model() -> nn.Module:
        return Counting(seen=np.zeros(1))

    assert [trained(made(model)) for _ in range(2)] == [trained(TorchLearner(model, (X, Y), (X, Y), device="cpu"))] * 2


def test_models_are_told_apart_by_what_their_function_reads(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = [made(wide).layout]
    monkeypatch.setitem(globals(), "WIDTH", 6)
    layouts += [made(wide).layout, made(lambda: nn.Linear(4, 3)).layout]
    shapes = [layout.index["bias"].shape for layout in layouts]
    assert shapes == [(5,), (6,), (3,)]


def test_a_simulation_makes_one_module(made: Any) -> None:
    spec = parse_job({"name": "j", "rounds": 2, "algorithm": {"name": "fedavg", "batch_size": 4}})
    model = made.factory(Counting)

    def learner(number: int) -> TorchLearner:
        return Alone(model, (X + number, Y), (X, Y), device="cpu")

    lean = shoal.simulate(spec, learner, nodes=6)
    calls = len(made.calls)
    wire = shoal.simulate(spec, [learner(number) for number in range(6)], fidelity="wire")
    assert digest(lean.model) == digest(wire.model)
    assert [version.metrics for version in lean.versions] == [version.metrics for version in wire.versions]
    assert calls == 2  # and another for the initial weights
