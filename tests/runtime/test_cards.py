"""The card that a learner computes on, from stand-ins for CUDA's answers."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shoal.runtime.training.cards import card_of


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(device: Any) -> Any:
        number = torch.device(device).index or 0
        assert number < 2, "Invalid device id"  # as torch does
        return SimpleNamespace(uuid=f"uuid-{number}")

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)


@pytest.mark.parametrize(
    ("device", "card"),
    [
        (torch.device("cuda", 1), "uuid-1"),
        ("cuda:1", "uuid-1"),
        (torch.device("cpu"), ""),
        ("mps", ""),
        ("", None),
        ("cuda:2", None),
    ],
)
def test_the_card_of_a_device(two_cards: None, device: Any, card: str | None) -> None:
    assert card_of(SimpleNamespace(device=device)) == card


def test_a_learner_without_a_device_does_not_say(two_cards: None) -> None:
    assert card_of(object()) is None


def test_another_librarys_card_is_not_known(two_cards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert card_of(SimpleNamespace(device="cuda:0")) is None
