"""Modules as people wrap and write them: compiled, in parallel, with hooks, with checkpoints, grown while they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import shoal
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.learn import TorchLearner
from shoal.learn.training.weights import load_into

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
ONCE = TrainConfig(batch_size=8, lr=0.1)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def learner(model: Any = network, **more: Any) -> TorchLearner:
    return TorchLearner(model, (X, Y), (X, Y), device="cpu", **more)


def trained(one: TorchLearner) -> list[float]:
    one.load(one.init(1))
    one.train(ONCE)
    return torch.cat([torch.from_numpy(one.model()[name].copy()).flatten() for name in sorted(one.model())]).tolist()


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda: torch.compile(network(), backend="eager"),
        lambda: nn.DataParallel(network()),
        lambda: torch.compile(nn.DataParallel(network()), backend="eager"),
    ],
    ids=["compiled", "parallel", "both"],
)
def test_a_wrappers_prefix_is_no_part_of_a_name(wrapped: Any) -> None:
    """So nodes that wrap their model and nodes that do not train one model, which loads into either."""
    one = learner(wrapped)
    assert one.layout == learner().layout
    assert trained(one) == trained(learner())
    for module in (network(), wrapped()):
        load_into(module, one.model())
        assert torch.equal(module(X), one.module(X))


class Late(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), None

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.body(x))
        if self.head is None:
            self.head = nn.Linear(3, 2)
        return self.head(hidden)


def test_a_layer_made_in_the_first_forward_pass_is_refused() -> None:
    with pytest.raises(LearnerFailed, match=r"training has added head\.bias, head\.weight") as caught:
        learner(Late).train(ONCE)
    assert "one batch" in caught.value.hint


def test_it_is_refused_where_learners_train_at_once() -> None:
    with pytest.raises(LearnerFailed, match=r"has added head\.bias"):
        shoal.simulate(shoal.JobSpec(name="late", rounds=1), [learner(Late) for _ in range(6)], progress=False)


class LearnedLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale: Any = None

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.scale = self.scale or nn.Parameter(torch.ones(()))
        return self.scale * nn.functional.cross_entropy(output, target)


def test_parameters_of_a_loss_or_a_metric_are_refused() -> None:
    """They would not be trained, or by each node alone."""
    ready = LearnedLoss()
    ready(torch.randn(2, 2), torch.tensor([0, 1]))
    with pytest.raises(InvalidJob, match=r"loss has parameters of its own \(scale\)"):
        learner(loss=ready)
    with pytest.raises(InvalidJob, match="judge has parameters"):
        learner(metrics={"judge": ready})
    with pytest.raises(InvalidJob, match="loss has parameters"):
        learner(loss=LearnedLoss()).train(ONCE)
    assert trained(learner(loss=nn.CrossEntropyLoss(weight=torch.ones(2)))) == trained(learner())


class Expanded(nn.Module):
    def __init__(self, own: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        scale = torch.ones(1).expand(4)
        self.register_buffer("scale", scale.clone() if own else scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scale)


def test_a_tensor_whose_numbers_share_memory_is_refused() -> None:
    with pytest.raises(InvalidJob, match="the model's scale is a view whose numbers share memory") as caught:
        learner(lambda: Expanded(own=False))
    assert "clone" in caught.value.hint
    trained(learner(lambda: Expanded(own=True)))
    trained(learner(lambda: nn.Linear(4, 2).to(memory_format=torch.contiguous_format)))


class Frugal(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.last, self.reentrant = nn.Linear(4, 3), nn.Linear(3, 2), reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.reentrant is None:
            return self.last(torch.relu(hidden))
        return self.last(checkpoint(torch.relu, hidden, use_reentrant=self.reentrant))


def test_checkpointing_changes_nothing() -> None:
    plain = trained(learner(lambda: Frugal(None)))
    assert trained(learner(lambda: Frugal(True))) == plain
    assert trained(learner(lambda: Frugal(False))) == plain


def test_hooks_of_parameters_are_called() -> None:
    calls: list[str] = []

    def model() -> nn.Module:
        made = network()
        for name, parameter in made.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: calls.append(name))
        return made

    learner(model).train(TrainConfig(steps=1, batch_size=8))
    assert sorted(calls) == sorted(name for name, _ in network().named_parameters())
    calls.clear()
    shoal.simulate(shoal.JobSpec(name="hooks", rounds=1), [learner(model) for _ in range(5)], progress=False)
    assert calls
