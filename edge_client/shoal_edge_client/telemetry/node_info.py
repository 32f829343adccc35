"""A node's description of itself. This module does not import torch."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from shoal import __version__


def collect_node_info(
    device: str,
    tags: Sequence[str] = (),
    hours: Sequence[str] = (),
    model: Mapping[str, Any] | None = None,
    compute: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return platform, Python, torch ("" if it is not installed), device and release of shoal.

    `compute`: more about the devices (`shoal.runtime.training.cards`).
    """
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch,
        "device": device,
        **(compute or {}),
        "shoal": __version__,
        **({"tags": list(tags)} if tags else {}),
        **({"hours": list(hours)} if hours else {}),
        **({"model": dict(model)} if model else {}),
    }
