"""Memory: glibc's settings, which are read before Python is, and how often Python looks for garbage.

This module is light: call it before the heavy imports.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys

KEEP = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_TOP_PAD_": "67108864"}
"""Keep big blocks instead of mapping them anew for each piece of a body (measured: receiving costs half)."""


def keep_big_blocks() -> None:
    """Start this process again with these settings, once, unless somebody has chosen other ones."""
    if sys.platform == "linux" and not any(name in os.environ for name in KEEP) and "pytest" not in sys.modules:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | KEEP)  # noqa: S606 - ourselves


def release_freed() -> None:
    """Return freed memory to the system. glibc does so for the top of its heap alone, where one small block in use
    keeps all below it. Takes some ms, for which nobody else allocates."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


GARBAGE = (50_000, 10, 20)
"""New objects, and looks at younger ones, between two searches for what only points at itself. Requests in hand are
many objects and no garbage: at Python's own 700, searching was a fifth of the processor time of a thousand clients."""


def search_seldom() -> None:
    """Look for garbage less often. Nearly all memory is freed without that; what is left are frames of what failed."""
    gc.set_threshold(*GARBAGE)
