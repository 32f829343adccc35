"""The devices that a learner computes on, from stand-ins for CUDA's answers."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shoal.runtime.training.cards import LearnerDevices, ProcessDevice, process_device


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(device: Any) -> Any:
        number = torch.device(device).index or 0
        assert number < 2, "Invalid device id"  # as torch does
        return SimpleNamespace(uuid=f"uuid-{number}", name="NVIDIA H200")

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)


@pytest.mark.parametrize(
    ("device", "card", "hardware"),
    [
        (torch.device("cuda", 1), "uuid-1", "NVIDIA H200"),
        ("cuda:1", "uuid-1", "NVIDIA H200"),
        (torch.device("cpu"), "", ""),
        ("mps", "", ""),
        ("", None, ""),
        ("cuda:2", None, ""),
    ],
)
def test_the_card_of_a_device(two_cards: None, device: Any, card: str | None, hardware: str) -> None:
    assert process_device(device) == ProcessDevice(str(device), card, hardware)


def test_another_librarys_card_is_not_known(two_cards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert process_device("cuda:0") == ProcessDevice("cuda:0", None)


CPU = ProcessDevice("cpu", "")
H200 = [ProcessDevice(f"cuda:{number}", f"uuid-{number}", "NVIDIA H200") for number in range(2)]
ELSEWHERE = ProcessDevice("cuda:0", "uuid-9", "NVIDIA L4")


@pytest.mark.parametrize(
    ("devices", "device", "cards", "told"),
    [
        ([], "", set(), {}),
        ([CPU], "cpu", set(), {}),
        (H200[:1], "cuda:0", {"uuid-0"}, {"hardware": "NVIDIA H200"}),
        ([CPU] * 2, "cpu", set(), {"processes": 2, "parallel": "pipeline"}),
        (
            [*H200, ELSEWHERE],
            "cuda:0–cuda:1",
            {"uuid-0", "uuid-1", "uuid-9"},
            {"hardware": "2 × NVIDIA H200, NVIDIA L4", "processes": 3, "parallel": "pipeline"},
        ),
        ([H200[0]] * 2, "cuda:0", {"uuid-0"}, {"hardware": "NVIDIA H200", "processes": 2, "parallel": "pipeline"}),
        ([ProcessDevice("cuda:1", None)], "cuda:1", None, {}),
    ],
    ids=["not loaded", "cpu", "one card", "two processes", "two machines", "one card for two", "not known"],
)
def test_a_node_tells_its_devices_and_processes(
    devices: list[ProcessDevice], device: str, cards: set[str] | None, told: dict[str, Any]
) -> None:
    compute = LearnerDevices(tuple(devices), "pipeline")
    assert (compute.device, compute.cards, compute.describe()) == (device, cards, told)
    assert LearnerDevices.parse(compute.values()) == compute
