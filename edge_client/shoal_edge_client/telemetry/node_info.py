"""What a node tells about itself. Nothing of this needs torch to be loaded."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from shoal import __version__


def info(
    device: str, tags: Sequence[str] = (), hours: Sequence[str] = (), model: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Platform, Python, torch ("" when it is not installed), device and release of shoal; tags, hours, and what the
    learner's model looks like, if any."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch,
        "device": device,
        "shoal": __version__,
        **({"tags": list(tags)} if tags else {}),
        **({"hours": list(hours)} if hours else {}),
        **({"model": dict(model)} if model else {}),
    }
