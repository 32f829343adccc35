"""How a learner computes: clipped gradients, deterministic operations, TensorFloat-32, compilation, full memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import Tree, digest
from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.stacked.stacked_training import why_not
from shoal.learn.user_errors import failure_of
from shoal.runtime.task_execution import one_line

X = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
ONE_STEP = TrainConfig(steps=1, batch_size=16, lr=0.5, seed=1)


def learner(
    config: TorchConfig, *, model: Callable[[], nn.Module] = lambda: nn.Linear(3, 2), **more: Any
) -> TorchLearner:
    return TorchLearner(model, (X, Y), (X, Y), device="cpu", config=config, **more)


def trained(config: TorchConfig, **more: Any) -> Tree:
    made = learner(config, **more)
    made.init(7)
    made.train(ONE_STEP)
    return made.model()


def reference(clip_norm: float, optimizer: Any) -> dict[str, Tensor]:
    """Return the weights after a step of torch's own loop."""
    module = nn.Linear(3, 2)
    start = learner(TorchConfig()).init(7)
    module.load_state_dict({name: torch.from_numpy(start[name].copy()) for name in ("weight", "bias")})
    moves = optimizer(module.parameters(), 0.5)
    nn.functional.cross_entropy(module(X), Y).backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
    moves.step()
    return {name: p.detach() for name, p in module.named_parameters()}


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)])
@pytest.mark.parametrize("clip_norm", [0.01, 1e6])
def test_gradients_are_clipped_as_torch_clips_them(clip_norm: float, optimizer: Any) -> None:
    found = trained(TorchConfig(clip_norm=clip_norm), optimizer=optimizer)
    for name, expected in reference(clip_norm, optimizer).items():
        torch.testing.assert_close(torch.from_numpy(found[name].copy()), expected)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan")])
def test_a_norm_is_above_zero(wrong: float) -> None:
    with pytest.raises(InvalidJob, match="clip_norm"):
        TorchConfig(clip_norm=wrong)


class Recorder(nn.Linear):
    """A layer that notes how torch is set."""

    seen: list[tuple[bool, str]]

    def forward(self, x: Tensor) -> Tensor:
        now = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
        type(self).seen.append(now)
        return super().forward(x)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (TorchConfig(), (False, "highest")),
        (TorchConfig(deterministic=True), (True, "highest")),
        (TorchConfig(tf32=True), (False, "high")),
    ],
    ids=["as torch is set", "deterministic", "tf32"],
)
def test_torch_is_set_for_the_task_alone(config: TorchConfig, expected: tuple[bool, str]) -> None:
    Recorder.seen = []
    made = learner(config, model=lambda: Recorder(3, 2))
    made.train(ONE_STEP)
    made.evaluate()
    made.gradient(ONE_STEP)
    assert set(Recorder.seen) == {expected}
    assert (torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()) == (False, "highest")


class Fails(nn.Linear):
    """A layer that cannot be computed."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no")


def test_torch_is_set_back_after_an_error() -> None:
    with pytest.raises(LearnerFailed):
        learner(TorchConfig(deterministic=True), model=lambda: Fails(3, 2)).train(ONE_STEP)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_compiled_module_has_the_same_tensors_and_the_same_bits() -> None:
    assert digest(trained(TorchConfig(compile="eager"))) == digest(trained(TorchConfig()))


@pytest.mark.parametrize(
    "config",
    [TorchConfig(deterministic=True), TorchConfig(tf32=False), TorchConfig(compile="eager")],
)
def test_learners_set_so_are_not_trained_at_once(config: TorchConfig) -> None:
    """`vmap` would compute without the settings."""
    assert why_not([learner(TorchConfig()), learner(TorchConfig())]) == ""
    assert why_not([learner(config), learner(config)])


def test_an_idle_learner_has_no_moments() -> None:
    adam = learner(TorchConfig(), optimizer=torch.optim.Adam)
    adam.train(ONE_STEP)
    assert adam._kept._optimizer is None
    kept = learner(TorchConfig(keep_optimizer=True), optimizer=torch.optim.Adam)
    kept.train(ONE_STEP)
    assert kept._kept._optimizer is not None


LINE = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which " + "x" * 600


class TooLarge(nn.Linear):
    """A layer whose output does not fit the device in the third step, unless there are few rows."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.alive: list[weakref.ref[Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        activations = super().forward(x)
        self.alive.append(weakref.ref(activations))
        if len(self.alive) > 2 and len(x) > 4:
            raise torch.OutOfMemoryError(LINE)
        return activations


@pytest.mark.parametrize("fails", ["train", "gradient", "evaluate"])
def test_a_step_without_memory_says_what_helps_and_a_smaller_task_follows(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The hint comes within the 400 characters of a report; the error, while it is kept, keeps no tensor. The memory
    is given back to other programs after the tensors are gone."""
    made = learner(TorchConfig(eval_batch_size=5), model=TooLarge, optimizer=torch.optim.Adam)
    layer = cast("TooLarge", made.module)
    held: list[int] = []

    def note(device: torch.device) -> None:
        held.append(sum(one() is not None for one in layer.alive) + sum(p.grad is not None for p in layer.parameters()))

    monkeypatch.setattr("shoal.learn.training.module_pool.release", note)
    large = TrainConfig(epochs=2, batch_size=5, lr=0.5, seed=1)
    gc.disable()
    try:
        with pytest.raises(LearnerFailed) as caught:
            getattr(made, fails)(*[large] * (fails != "evaluate"))
        assert "Tried to allocate 2.00 GiB" in one_line(caught.value)
        assert one_line(caught.value).endswith("or another device)")
        assert held == [0]
    finally:
        gc.enable()
    made.train(replace(large, batch_size=4))
    assert held == [0, 0]


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (torch.OutOfMemoryError("tried to allocate 3 TiB"), "smaller batch_size (with accumulate)"),
        (MemoryError(), "smaller batch_size (with accumulate)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "smaller batch_size (with accumulate)"),
        (RuntimeError("CUDA error: out of memory"), "smaller batch_size (with accumulate)"),
        (OSError(12, "Cannot allocate memory"), "smaller batch_size (with accumulate)"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), "use fewer workers"),
        (RuntimeError("shapes differ"), "the full traceback"),
    ],
)
def test_memory_errors_come_with_a_remedy(error: Exception, remedy: str) -> None:
    assert remedy in failure_of(error, "training").hint


def test_convolutions_with_the_channels_last_learn_the_same() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))

    images = torch.randn(16, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    plain, last = (
        TorchLearner(model, (images, Y), device="cpu", config=TorchConfig(channels_last=chosen))
        for chosen in (False, True)
    )
    for one in (plain, last):
        one.init(7)
        one.train(ONE_STEP)
    assert last.module.get_parameter("0.weight").is_contiguous(memory_format=torch.channels_last)
    found, wanted = (one.model().buffer.view("float32") for one in (last, plain))
    assert abs(found - wanted).max() < 1e-6
