"""What a node tells about itself. Nothing of this needs torch to be loaded."""

from __future__ import annotations

import platform
from importlib import metadata

from shoal import __version__


def info(device: str) -> dict[str, str]:
    """Platform, Python, torch ("" when it is not installed), device and release of shoal."""
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
    }
