"""Names of devices, and what is said where one is not there."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shoal.core.errors import InvalidJob
from shoal.learn import TorchLearner
from shoal.learn.training.devices import RESIDENT_BYTES, describe, resident_limit, resolve


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Pretend to a number of NVIDIA GPUs and to a Metal device."""

    def pretend(gpus: int = 0, metal: bool = False, build: str | None = "12.8") -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.version, "cuda", build)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: metal)

    return pretend


@pytest.mark.parametrize(
    ("gpus", "metal", "name", "device"),
    [
        (0, False, "auto", "cpu"),
        (0, True, "auto", "mps"),
        (1, True, "auto", "cuda:0"),
        (2, False, "cuda", "cuda:0"),
        (2, False, "CUDA:1", "cuda:1"),
        (2, False, " cpu ", "cpu"),
        (0, True, "mps", "mps"),
    ],
)
def test_devices_by_name(machine, gpus: int, metal: bool, name: str, device: str) -> None:
    machine(gpus, metal)
    assert str(resolve(name)) == device


@pytest.mark.parametrize("has_library", [True, False])
def test_auto_is_the_card_with_the_most_free_memory(machine, has_library: bool, monkeypatch) -> None:
    machine(3)
    used = [70, 10, 40]

    def memory_used(index: int) -> int:
        if not has_library:
            raise ModuleNotFoundError("No module named 'pynvml'")
        return used[index]

    monkeypatch.setattr(torch.cuda, "device_memory_used", memory_used)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=80))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (80 - used[index], 80))
    assert str(resolve("auto")) == "cuda:1"
    assert str(resolve("cuda")) == "cuda:0"


def test_a_learner_keeps_to_the_card_that_it_has_named(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one may have more free memory when its model is placed."""
    data = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
    learner = TorchLearner(lambda: nn.Linear(2, 2), data)
    machine(2)
    used = [70, 10]
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda index: used[index])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=80))
    assert str(learner.device) == "cuda:1"
    used.reverse()
    assert str(learner.device) == "cuda:1"
    learner.use(device="cuda:0")
    assert str(learner.device) == "cuda:0"


def test_data_may_take_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 << 30, 80 << 30))
    assert resident_limit(torch.device("cuda", 0)) == 30 << 30
    assert resident_limit(torch.device("cpu")) == RESIDENT_BYTES


@pytest.mark.parametrize(
    ("gpus", "build", "name", "said"),
    [
        (0, None, "cuda", "this build of torch has no CUDA"),
        (0, "12.8", "cuda:0", "no usable NVIDIA GPU"),
        (1, "12.8", "cuda:1", "there is no cuda:1: this machine has 1 NVIDIA GPU, counted"),
        (2, "12.8", "cuda:7", "has 2 NVIDIA GPUs"),
        (2, "12.8", "mps", "no Metal device"),
    ],
)
def test_missing_devices_are_told(machine, gpus: int, build: str | None, name: str, said: str) -> None:
    machine(gpus, build=build)
    with pytest.raises(InvalidJob, match=said) as told:
        resolve(name)
    assert told.value.code == "device.missing"


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "cuda:9999"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidJob, match="is not a device") as told:
        resolve(name)
    assert "cuda:1" in told.value.hint


def test_a_device_is_described() -> None:
    said = describe(torch.device("cpu"))
    assert set(said) == {"device", "name", "memory_bytes"}
    assert said["device"] == "cpu"
    assert isinstance(said["memory_bytes"], int)
