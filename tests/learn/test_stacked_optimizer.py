"""Any optimizer that moves each number by itself moves stacked learners as it moves each alone."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.core.algorithm.learner import TrainConfig
from shoal.learn import TorchConfig, TorchLearner, models
from shoal.learn.stacked.stacked_optimizer import BY_NUMBER
from shoal.learn.stacked.stacked_training import train_stacked, why_not
from tests.learn.stacked_learners import LENGTHS, assert_alone, equal_parts, ragged

SGD, ADAM = torch.optim.SGD, torch.optim.Adam
TWO_PASSES = TrainConfig(epochs=2, batch_size=8, lr=0.01)


def decaying_matrices(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Return an optimizer with two groups, as is usual for weight decay."""
    given = list(parameters)
    matrices, others = ([p for p in given if (p.ndim > 1) == is_matrix] for is_matrix in (True, False))
    return SGD([{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": lr / 2}], lr, momentum=0.5)


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(SGD, momentum=0.9),
        partial(SGD, momentum=0.9, dampening=0.3),
        partial(SGD, momentum=0.9, nesterov=True, weight_decay=0.01),
        partial(SGD, maximize=True),
        partial(ADAM, weight_decay=0.1, amsgrad=True, foreach=True),
        decaying_matrices,
        *sorted(BY_NUMBER - {SGD}, key=str),
    ],
    ids=lambda made: getattr(made, "__name__", None) or f"{made.func.__name__} {made.keywords}",
)
def test_each_learner_moves_as_alone(optimizer: Any) -> None:
    """In the second pass learners of different sizes have made different numbers of steps."""
    alone = assert_alone(ragged(LENGTHS, optimizer=optimizer), TWO_PASSES)
    assert 0.0 in alone
    assert max(alone) > 0


@pytest.mark.parametrize("optimizer", [SGD, ADAM])
def test_gradients_are_clipped_by_the_norm_of_each_learner(optimizer: Any) -> None:
    def trained(norm_max: float | None) -> float:
        config = TorchConfig(clip_norm=norm_max)
        learners = equal_parts(4, optimizer=optimizer, config=config)
        assert_alone(ragged(LENGTHS, optimizer=optimizer, config=config), TWO_PASSES)
        (done, *_), *_ = train_stacked(learners, learners[0].init(0), [TWO_PASSES] * 4)
        return float(done.metrics["train/loss"])

    assert trained(0.1) != trained(None)


class HalfUsed(nn.Module):
    """A model with a layer that its output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def test_weights_without_a_gradient_do_not_decay() -> None:
    learners = ragged(LENGTHS, model=HalfUsed, optimizer=partial(SGD, weight_decay=0.5))
    assert_alone(learners, TWO_PASSES)


def test_a_new_task_begins_without_momentum() -> None:
    learners = equal_parts(4, optimizer=partial(SGD, momentum=0.9))
    base, configs = learners[0].init(0), [TWO_PASSES] * 4
    first, again = (train_stacked(learners, base, configs) for _ in range(2))
    assert all((one.model.buffer == two.model.buffer).all() for one, two in zip(first, again, strict=True))


def hooked(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    made = SGD(parameters, lr, momentum=0.9)
    made.register_step_post_hook(lambda *_: None)
    return made


def scheduled(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    made = SGD(parameters, lr, momentum=0.9)
    torch.optim.lr_scheduler.StepLR(made, 1)
    return made


def with_another_tensor(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return SGD([*parameters, torch.zeros(1, requires_grad=True)], lr, momentum=0.9)


@pytest.mark.parametrize(
    ("optimizer", "config", "reason"),
    [
        (torch.optim.LBFGS, TorchConfig(), "their optimizer, LBFGS, may not move each number by itself"),
        (torch.optim.Adafactor, TorchConfig(), "their optimizer, Adafactor, may not move each number by itself"),
        (hooked, TorchConfig(), "their optimizer has hooks or a scheduler"),
        (scheduled, TorchConfig(), "their optimizer has hooks or a scheduler"),
        (with_another_tensor, TorchConfig(), "their optimizer moves other tensors than the model's parameters"),
        (ADAM, TorchConfig(keep_optimizer=True), "they keep their optimizer from task to task"),
        (SGD, TorchConfig(accumulate=2), "they accumulate the gradients of several batches"),
        (SGD, TorchConfig(precision="bf16"), "they set their precision or arithmetic, or compile the model"),
    ],
    ids=["LBFGS", "Adafactor", "hook", "scheduler", "another tensor", "kept", "accumulated", "precision"],
)
def test_other_steps_are_not_made_together(optimizer: Any, config: TorchConfig, reason: str) -> None:
    assert why_not(equal_parts(2, optimizer=optimizer, config=config)) == reason


def test_optimizers_are_alike_by_what_they_set() -> None:
    def made(optimizer: Callable[..., torch.optim.Optimizer]) -> TorchLearner:
        return equal_parts(1, models.mlp, optimizer=optimizer)[0]

    def given(momentum: float) -> TorchLearner:
        return made(lambda parameters, lr: SGD(parameters, lr, momentum=momentum))

    assert why_not([given(0.5), given(0.5)]) == ""
    assert "optimizers" in why_not([given(0.5), given(0.6)])
    assert why_not([made(partial(SGD, momentum=0.5)), made(partial(SGD, momentum=0.5))]) == ""
    assert "optimizers" in why_not([made(partial(SGD, momentum=0.5)), made(partial(ADAM))])
