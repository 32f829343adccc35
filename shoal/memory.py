"""Memory of a process: settings of glibc's malloc, and the frequency of Python's garbage collection.

By default glibc maps each big block again, and gives each thread an arena, which keeps what it has freed. mallopt(3)
changes that from within; the environment's `MALLOC_…` mean the same, but only to a process that begins with them.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Mapping

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8
"""Names of settings in malloc.h."""
KEEP_BIG_BLOCKS = {MMAP_THRESHOLD: 1 << 30, TRIM_THRESHOLD: 1 << 30, TOP_PAD: 64 << 20}
"""For a coordinator: blocks are reused for the next piece of a body (measured: receiving costs half)."""
SHARE_HEAP = {ARENA_MAX: 1, MMAP_THRESHOLD: 1 << 20, TRIM_THRESHOLD: 16 << 20}
"""For a peer, which moves models through many threads: all share one heap, and blocks of a model go back to the system
when they are freed. With a model of 10 MB it would else hold 130 MB that it does not use."""
REUSE_STACKS = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20}
"""For a process that makes and frees stacks of models all the time: memory for them is not asked of the system again.
glibc sets the same by itself once a process has freed a block of 32 MiB."""

GARBAGE = (50_000, 10, 20)
"""New objects, and looks at younger ones, between two searches for what only points at itself. Requests in hand are
many objects and no garbage: at Python's own 700, searching was a fifth of the processor time of a thousand clients."""


def configure_malloc(settings: Mapping[int, int]) -> None:
    """Use these settings from now on, unless the environment has some; call it before threads are started."""
    mallopt = _glibc("mallopt")
    if mallopt is not None and not any(name.startswith("MALLOC_") for name in os.environ):
        for name, value in settings.items():
            mallopt(name, value)


def release_freed() -> None:
    """Return freed memory to the system. glibc does so for the top of its heap alone, where one small block in use
    keeps all below it. Takes some ms, in which no other thread allocates."""
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _glibc(function: str) -> Callable[..., object] | None:
    """Return a function of glibc; None in other libraries, such as musl."""
    return getattr(ctypes.CDLL(None), function, None) if sys.platform == "linux" else None


def collect_seldom() -> None:
    """Collect garbage less often. Nearly all memory is freed without that; the rest are frames of failures."""
    gc.set_threshold(*GARBAGE)
