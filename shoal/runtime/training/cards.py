"""The NVIDIA card that a learner computes on. Loads no torch."""

from __future__ import annotations

import sys
from typing import Any


def card_of(learner: object) -> str | None:
    """Return the UUID of a learner's card, "" if it computes on something else, None if that is not known.

    A card's number is not a name for it: CUDA counts the cards that a process may use, in an order of its own.
    """
    device = str(getattr(learner, "device", ""))
    torch: Any = sys.modules.get("torch")
    if not device or (device.startswith("cuda") and torch is None):
        return None
    if not device.startswith("cuda"):
        return ""
    try:
        return str(torch.cuda.get_device_properties(device).uuid)
    except (AssertionError, AttributeError, RuntimeError):  # a card that is not there, or has no UUID
        return None
