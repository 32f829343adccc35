"""What a node tells about itself. Nothing of this needs torch to be loaded."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from shoal import __version__


def info(device: str, tags: Sequence[str] = (), hours: Sequence[str] = ()) -> dict[str, Any]:
    """Platform, Python, torch ("" when it is not installed), device and release of shoal; tags and hours, if any."""
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
    }
