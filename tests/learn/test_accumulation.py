"""Gradients of several batches that make one step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob
from shoal.core.model.tree import Tree
from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.stacked.stacked_training import why_not

X = torch.randn(100, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X[:, 0] > 0).long()
ROUNDING = 1e-12
"""Relative. Means of 8 and of 32 numbers of float64 differ by some 1e-16; a batch with a wrong weight by some 0.01."""


class Recorder(nn.Linear):
    """A layer that notes how many examples it is given."""

    seen: list[int]

    def forward(self, x: Tensor) -> Tensor:
        type(self).seen.append(len(x))
        return super().forward(x)


class Counted(torch.optim.SGD):
    """Plain SGD that counts its steps."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        Counted.steps += 1
        return super().step(closure)


class Walked(IterableDataset[Any]):
    """The same examples, of which only iteration tells how many there are."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


def learner(accumulate: int, data: Any = (X, Y), **more: Any) -> TorchLearner:
    config = TorchConfig(accumulate=accumulate, **more.pop("config", {}))
    made = TorchLearner(lambda: Recorder(3, 2).double(), data, device="cpu", config=config, **more)
    made.init(7)
    Recorder.seen, Counted.steps = [], 0
    return made


@pytest.mark.parametrize("config", [{"epochs": 2.0}, {"epochs": 2.0, "batch_index": 0}], ids=["passes", "sequence"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"optimizer": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)},
        {"config": {"clip_norm": 0.1}},
        {"optimizer": torch.optim.Adam, "config": {"clip_norm": 0.1}},
    ],
    ids=["SGD", "momentum", "clipped", "Adam"],
)
def test_four_batches_make_the_step_of_a_large_one(more: dict[str, Any], config: dict[str, Any]) -> None:
    """A pass of 100 examples ends with a step of 4, in batches of 8 and of 32 alike."""
    parted, whole = (learner(count, **more) for count in (4, 1))
    many = parted.train(TrainConfig(batch_size=8, seed=1, **config))
    assert max(Recorder.seen) == 8
    few = whole.train(TrainConfig(batch_size=32, seed=1, **config))
    assert many.weight == few.weight
    assert many.metrics == pytest.approx(few.metrics, rel=ROUNDING)
    for name in parted.layout.index:
        np.testing.assert_allclose(parted.model()[name], whole.model()[name], rtol=ROUNDING)


def test_a_batch_counts_by_its_examples() -> None:
    """Batches of 40, 40 and 20 make the step of all 100 examples."""
    parted, whole = learner(3), learner(1)
    parted.train(TrainConfig(batch_size=40, seed=1))
    whole.train(TrainConfig(batch_size=0, seed=1))
    for name in parted.layout.index:
        np.testing.assert_allclose(parted.model()[name], whole.model()[name], rtol=ROUNDING)


@pytest.mark.parametrize("data", [(X, Y), Walked()], ids=["tensors", "an iterable"])
@pytest.mark.parametrize(
    ("config", "batches", "steps"),
    [
        ({"steps": 8}, 8, 2),
        ({"steps": 6}, 6, 2),  # of 4 batches and of 2
        ({"steps": 15}, 15, 5),  # a pass has 13: 4 + 4 + 4 + 1, and 2 of the next
        ({"epochs": 2.0}, 26, 8),
    ],
)
def test_the_budget_counts_batches(data: Any, config: dict[str, Any], batches: int, steps: int) -> None:
    made = learner(4, data, optimizer=Counted)
    made.train(TrainConfig(batch_size=8, seed=1, **config))
    assert (len(Recorder.seen), Counted.steps) == (batches, steps)


def test_a_pass_ends_a_step_wherever_the_task_began() -> None:
    """Position 24 of a sequence is the last but one batch of the second pass."""
    made = learner(4, optimizer=Counted)
    made.train(TrainConfig(steps=7, batch_size=8, batch_index=24))
    assert (len(Recorder.seen), Counted.steps) == (7, 3)  # of 2, 4 and 1 batches


@pytest.mark.parametrize("more", [{}, {"optimizer": Counted}], ids=["SGD", "an optimizer"])
def test_a_step_is_corrected_once(more: dict[str, Any]) -> None:
    corrected: list[Tree] = []

    def correct(weights: Tree, gradient: Tree) -> Tree:
        corrected.append(gradient)
        return gradient

    learner(4, **more).train(TrainConfig(steps=4, batch_size=8, seed=1), correct=correct)
    parted, corrected = corrected, []
    learner(1, **more).train(TrainConfig(steps=1, batch_size=32, seed=1), correct=correct)
    assert len(parted) == len(corrected) == 1
    for name in corrected[0].layout.index:
        np.testing.assert_allclose(parted[0][name], corrected[0][name], rtol=ROUNDING)


def test_the_scale_of_a_loss_changes_once_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[float] = []
    update = torch.amp.GradScaler.update

    def counted(scaler: torch.amp.GradScaler) -> None:
        update(scaler)
        updates.append(scaler.get_scale())

    monkeypatch.setattr(torch.amp.GradScaler, "update", counted)
    learner(4, config={"precision": "fp16"}).train(TrainConfig(steps=8, batch_size=8, seed=1))
    assert len(updates) == 2


def squares(_: Any, output: Tensor) -> Tensor:
    return output.square().mean()


def test_an_extra_loss_counts_like_the_loss() -> None:
    parted, whole = learner(4), learner(1)
    for made, size, steps in ((parted, 8, 4), (whole, 32, 1)):
        made.train(TrainConfig(steps=steps, batch_size=size, seed=1), extra_loss=squares)
    for name in parted.layout.index:
        np.testing.assert_allclose(parted.model()[name], whole.model()[name], rtol=ROUNDING)


def test_gradients_of_some_rows_are_added() -> None:
    words = torch.arange(16) % 5
    parted, whole = (
        TorchLearner(
            lambda: nn.Sequential(nn.Embedding(9, 2, sparse=True)).double(),
            (words, Y[:16]),
            device="cpu",
            config=TorchConfig(accumulate=n),
        )
        for n in (4, 1)
    )
    for made, size, steps in ((parted, 4, 4), (whole, 16, 1)):
        made.init(7)
        made.train(TrainConfig(steps=steps, batch_size=size, seed=1))
    np.testing.assert_allclose(parted.model()["0.weight"], whole.model()["0.weight"], rtol=ROUNDING)


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_step_has_a_batch(wrong: int) -> None:
    with pytest.raises(InvalidJob, match="accumulate"):
        TorchConfig(accumulate=wrong)


def test_accumulating_learners_are_not_trained_at_once() -> None:
    """Training at once makes a step of each batch."""
    assert why_not([learner(4), learner(4)])
