"""The pages that the coordinator shows: files that were built from the sources beside this one, and where they are."""

from pathlib import Path

__all__ = ["TO_BUILD", "assets"]

TO_BUILD = "python dev.py dashboard builds it in a clone; then install again, or install with SHOAL_SKIP_UI=0"
"""Hint for a missing build of the pages."""


def assets() -> Path | None:
    """Return the folder of the built pages (`index.html` and its files); None if they were not built."""
    folder = Path(__file__).parent / "static"
    return folder if (folder / "index.html").is_file() else None
