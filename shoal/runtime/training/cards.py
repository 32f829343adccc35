"""The devices on which the processes of a learner compute. Loads no torch."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ProcessDevice:
    """The device of one process. `name`: "cpu", "cuda:0", … or "" if the learner does not tell; `card`: the UUID of an
    NVIDIA card, "" on something else, None if that is not known; `hardware`: the card's product name.

    A card's number is not a name for it: CUDA counts the cards that a process may use, in an order of its own.
    """

    name: str
    card: str | None
    hardware: str = ""


def process_device(device: object) -> ProcessDevice:
    """Return the facts about a device of torch, or its name."""
    name = str(device)
    if not name.startswith("cuda"):
        return ProcessDevice(name, "" if name else None)
    torch: Any = sys.modules.get("torch")
    try:
        found = torch.cuda.get_device_properties(name)
        return ProcessDevice(name, str(found.uuid), str(found.name))
    except (AssertionError, AttributeError, RuntimeError):  # a card that is not there, or has no UUID
        return ProcessDevice(name, None)


@dataclass(frozen=True)
class LearnerDevices:
    """The devices of a learner, one for each process, and the way in which several processes divide the training."""

    devices: tuple[ProcessDevice, ...] = ()
    parallel: str = ""

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> LearnerDevices:
        """Return the inverse of `values`."""
        return cls(tuple(ProcessDevice(**one) for one in values["devices"]), str(values["parallel"]))

    def values(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @property
    def device(self) -> str:
        """The names of the devices: "cuda:0", "cuda:0–cuda:3" for consecutive ones; "" if they are not known."""
        names = list(dict.fromkeys(one.name for one in self.devices))
        if len(names) > 1 and names == [f"cuda:{number}" for number in range(len(names))]:
            return f"{names[0]}–{names[-1]}"
        return ", ".join(names)

    @property
    def cards(self) -> frozenset[str] | None:
        """The UUIDs of the NVIDIA cards, without any if the learner is not loaded; None if one is not known."""
        found = frozenset(one.card for one in self.devices if one.card is not None)
        return None if any(one.card is None for one in self.devices) else found - {""}

    def describe(self) -> dict[str, Any]:
        """Return the facts beside `device` that a node tells about itself: its cards, and its processes if it has
        several."""
        counts = Counter({one.card: one.hardware for one in self.devices if one.hardware}.values())
        hardware = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in counts.items())
        processes = {"processes": len(self.devices), "parallel": self.parallel} if len(self.devices) > 1 else {}
        return {**({"hardware": hardware} if hardware else {}), **processes}
